"""Commands with a model of several members."""

import json

import numpy as np
import pytest

from charlm.inference.trained import load
from tests.runs import rows


def test_one_command_for_all_members(cli, members_run, text_file):
    static = json.loads(cli("eval", members_run, "--json").out)
    lowest = min(row["nats"] for row in rows(members_run) if row["split"] == "valid")
    assert static["nats_per_char"] == pytest.approx(lowest, rel=1e-6)
    dynamic = json.loads(cli("eval", members_run, "--dynamic", "--json").out)["dynamic"]
    assert dynamic["nats_per_char"] < static["nats_per_char"]
    model = load(members_run, device="cpu")
    assert cli("sample", members_run, "--seed", 3, "--length", 30).out == model.sample(seed=3, length=30) + "\n"
    assert cli("score", members_run, text_file).code == 0
    assert model.features(["at", "e"]).shape == (2, 2 * 16)
    assert "  lstm 2 × 16, 2 members  " in cli("runs", members_run).out
    resumed = cli("train", "--resume", "--run-dir", members_run, "--set", "model.members=1")
    assert resumed.error.startswith("model.members: found 1, the run has 2; ")


def test_what_explains_or_exports_one_network_takes_the_first_and_says_so(cli, members_run, tmp_path):
    line = "the first of 2 members; together they score better\n"
    looked = cli("look", members_run, "--out", tmp_path / "look.html", "--gradients", "--length", 300)
    assert (looked.code, f"look     {line}" in looked.err) == (0, True)
    exported = cli("export", members_run, "--to", "html", "--out", tmp_path / "model.html")
    assert (exported.code, f"export   {line}" in exported.err) == (0, True)
    model = load(members_run, device="cpu")
    first = model.first_member("test")
    assert (first.kind, first.parameters) == ("lstm, 2 × 16 units", model.parameters / 2)
    np.testing.assert_array_equal(model.gradient_norms("some letters"), first.gradient_norms("some letters"))
