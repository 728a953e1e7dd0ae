"""Commands with a model of several members."""

import json

import pytest

from charlm.inference.trained import load
from tests.runs import rows


def test_members_answer_together_or_the_first_of_them_says_so(cli, members_run, tmp_path):
    value = json.loads(cli("eval", members_run, "--dynamic", "--json").out)
    lowest = min(row["nats"] for row in rows(members_run) if row["split"] == "valid")
    assert value["nats_per_char"] == pytest.approx(lowest, rel=1e-6)
    assert value["dynamic"]["nats_per_char"] < lowest
    model = load(members_run, device="cpu")
    assert cli("sample", members_run, "--seed", 3, "--length", 30).out == model.sample(seed=3, length=30) + "\n"
    assert model.features(["at", "e"]).shape == (2, 2 * 16)
    assert "  lstm 2 × 16, 2 members  " in cli("runs", members_run).out
    line = "the first of 2 members; together they score better\n"
    looked = cli("look", members_run, "--out", tmp_path / "look.html", "--gradients", "--length", 300)
    assert (looked.code, f"look     {line}" in looked.err) == (0, True)
    exported = cli("export", members_run, "--to", "html", "--out", tmp_path / "model.html")
    assert (exported.code, f"export   {line}" in exported.err) == (0, True)
    assert model.first_member("test").parameters == model.parameters / 2
    resumed = cli("train", "--resume", "--run-dir", members_run, "--set", "model.members=1")
    assert resumed.error.startswith("model.members: found 1, the run has 2; ")
