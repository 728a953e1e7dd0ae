"""Commands with a model of several members."""

import json

import numpy as np
import pytest

from charlm.inference.trained import load
from tests.runs import rows

MEMBERS = ["--set", "model.members=2", "--set", "model.layers=2"]


@pytest.fixture
def run(cli, tiny_config, tmp_path):
    result = cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run", *MEMBERS)
    assert result.code == 0
    assert "\nmodel    lstm, 2 × 16 units, 2 members: " in result.err
    return tmp_path / "run"


def test_one_command_for_all_members(cli, run, text_file):
    static = json.loads(cli("eval", run, "--json").out)
    lowest = min(row["nats"] for row in rows(run) if row["split"] == "valid")
    assert static["nats_per_char"] == pytest.approx(lowest, rel=1e-6)
    dynamic = json.loads(cli("eval", run, "--dynamic", "--json").out)["dynamic"]
    assert dynamic["nats_per_char"] < static["nats_per_char"]
    sampled = cli("sample", run, "--seed", 3, "--length", 30, "--json")
    model = load(run, device="cpu")
    assert json.loads(sampled.out)["samples"][0]["text"] == model.sample(seed=3, length=30)
    nats = model.evaluate(text_file.read_text()).nats_per_char
    assert json.loads(cli("eval", run, "--file", text_file, "--json").out)["nats_per_char"] == pytest.approx(nats)
    assert cli("score", run, text_file).code == 0
    assert cli("next", run, "--prompt", "a").code == 0
    assert model.features(["at", "e"]).shape == (2, 2 * 16)
    assert cli("runs", run).out.splitlines()[1].split("  ")[1].strip() == "lstm 2 × 16, 2 members"
    assert json.loads(cli("runs", run, "--json").out)[0]["members"] == 2


def test_what_explains_or_exports_one_network_takes_the_first_and_says_so(cli, run, tmp_path):
    line = "the first of 2 members; together they score better"
    looked = cli("look", run, "--out", tmp_path / "look.html", "--gradients", "--length", 300)
    assert (looked.code, f"look     {line}" in looked.err.splitlines()) == (0, True)
    exported = cli("export", run, "--to", "html", "--out", tmp_path / "model.html")
    assert (exported.code, f"export   {line}" in exported.err.splitlines()) == (0, True)
    model = load(run, device="cpu")
    first = model.first_member("test")
    assert (first.kind, first.parameters) == ("lstm, 2 × 16 units", model.parameters / 2)
    assert first.progress["best_nats"] is None
    assert first.first_member("test") is first
    np.testing.assert_array_equal(model.gradient_norms("some letters"), first.gradient_norms("some letters"))


def test_a_run_of_other_members_is_refused(cli, run, tiny_config, tmp_path):
    words = ["train", "--config", tiny_config, "--run-dir", tmp_path / "new", "--init-from", run]
    refused = cli(*words, "--set", "model.members=3", "--set", "model.layers=2")
    assert refused.error == ("model.members: found 3; the checkpoint of --init-from has 2; allowed: the same")
    tuned = cli(*words, *MEMBERS)
    assert tuned.code == 0, tuned.err
    resumed = cli("train", "--resume", "--run-dir", run, "--set", "model.members=1")
    assert resumed.error.startswith("model.members: found 1, the run has 2; ")


def test_classify(cli, write, tmp_path):
    lines = "".join(f"{label}\t{word * 3}\n" for label, word in [("a", "xyz"), ("b", "uvw")] for _ in range(200))
    options = ["model.members=2", "model.cell.hidden=16", "train.batch_size=4", "train.max_steps=60"]
    words = [word for option in options for word in ("--set", option)]
    file, run = write("labeled.txt", lines), tmp_path / "run"
    trained = cli("train", file, "--lines", "--config", "lstm", "--run-dir", run, *words)
    assert trained.code == 0, trained.err
    model = load(run, device="cpu")
    for line, (label, p) in zip(["xyzxyz", "uvw"], model.classify(["xyzxyz", "uvw"], ["a", "b"]), strict=True):
        scored = {each: np.exp(-model.evaluate(f"{each}\t{line}").nats_sum) for each in "ab"}
        assert p == pytest.approx(scored[label] / sum(scored.values()), rel=1e-3)
