"""`charlm train TEXT --minutes M` and `charlm config suggest`: no YAML at all."""

import json
import re

import pytest

from charlm.config import load_config
from charlm.system.files import plain_name

pytestmark = pytest.mark.usefixtures("quick")


def test_train_a_text(cli, text_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = cli("train", text_file, "--minutes", 0.01, "--set", "seed=5")
    assert (result.code, len(result.out)) == (0, 401)
    told = [line.split()[0] for line in result.err.splitlines()]
    assert [label for label in told if label in ("text", "machine", "choice")] == ["text", "machine", "choice"]
    [run] = (tmp_path / "runs").iterdir()
    assert run.name.startswith(f"{text_file.stem}-")
    config = load_config(run / "config.yaml")
    assert (config.train.max_minutes, config.seed, config.data.source) == (0.01, 5, str(text_file))
    resumed = cli("train", "--resume", "--run-dir", run, "--minutes", 0.015, "--json")
    assert json.loads(resumed.out)["reason"] == "max_minutes"
    assert "change   train.max_minutes: 0.01 → 0.015\n" in resumed.err


def test_a_start_that_takes_the_whole_time_leaves_some_to_train(cli, text_file, tmp_path, monkeypatch):
    monkeypatch.setattr("charlm.cli.train.leaving_s", lambda loading_s: 0.6)
    result = cli("train", text_file, "--minutes", 0.01, "--run-dir", tmp_path / "run", "--json")
    assert "starting took most of 0.6 s; training gets 50% of them anyway" in result.err
    assert json.loads(result.out)["step"] > 0


def test_run_names():
    names = {
        "b": "b", "*": "run", "builtin:python-stdlib": "builtin-python-stdlib", ".txt": "txt", "x" * 300: "x" * 40,
        "Ünïcode novel": "Ünïcode-novel", "NUL": "NUL_", "a\0b:c\\..": "a-b-c",
    }  # fmt: skip
    assert {text: plain_name(text) for text in names} == names


def test_suggest_prints_a_config(cli, text_file, tmp_path):
    result = cli("config", "suggest", text_file, "--minutes", 2, "--set", "model.cell.kind=rhn")
    assert result.code == 0
    (tmp_path / "mine.yaml").write_text(result.out)
    config = load_config(tmp_path / "mine.yaml")
    assert (config.model.cell.kind, config.train.max_minutes) == ("rhn", 2)
    assert re.search(r"    hidden: \d+ +# Hidden units of each layer, H\n", result.out)
    assert re.search(r"  activation_penalty: .* # Weight of AR \(Merity et al\. 2017\): mean square", result.out)
    assert "sample_length" not in result.out  # it keeps its default
