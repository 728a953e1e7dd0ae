"""`charlm train TEXT --minutes M` and `charlm config suggest`: no YAML at all."""

import json
import re
from pathlib import Path

import pytest

from charlm.config import load_config
from charlm.system.files import plain_name

LABELS = ["text", "machine", "choice", "plan"]


@pytest.mark.usefixtures("quick")
def test_train_a_text(cli, text_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = cli("train", text_file, "--minutes", 0.02, "--set", "seed=5")
    assert result.code == 0
    told = [line.split()[0] for line in result.err.splitlines()]
    assert [label for label in LABELS if label in told] == LABELS
    assert len(result.out) == 401
    [run] = (tmp_path / "runs").iterdir()
    assert run.name.startswith(f"{text_file.stem}-")
    config = load_config(run / "config.yaml")
    assert (config.train.max_minutes, config.seed, config.data.source) == (0.02, 5, str(text_file))
    resumed = cli("train", "--resume", "--run-dir", run, "--minutes", 0.03, "--json")
    assert json.loads(resumed.out)["reason"] == "max_minutes"
    assert load_config(run / "config.yaml").train.max_minutes == 0.03
    monkeypatch.setattr("charlm.training.start.run_of_this_launch", lambda group: run)
    again = cli("train", text_file, "--minutes", 0.02)  # as torchrun starts it again
    assert (again.code, len(again.out)) == (0, 401)
    assert "choice" not in again.err
    assert "resume" in again.err


@pytest.mark.usefixtures("quick")
def test_a_start_that_takes_the_whole_time_leaves_some_to_train(cli, text_file, tmp_path, monkeypatch):
    monkeypatch.setattr("charlm.cli.train.leaving_s", lambda loading_s: 1.2)
    result = cli("train", text_file, "--minutes", 0.02, "--run-dir", tmp_path / "run", "--json")
    assert "starting took most of 1.2 s; training gets 50% of them anyway" in result.err
    assert json.loads(result.out)["step"] > 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a/b.txt", "b"), ("books/*.txt", "run"), (".", "run"), ("builtin:python-stdlib", "builtin-python-stdlib"),
        (".txt", "txt"), ("x" * 300, "x" * 40), ("Ünïcode novel.txt", "Ünïcode-novel"),
        ("NUL.txt", "NUL_"), ("a\0b:c\\..", "a-b-c"),
    ],
)  # fmt: skip
def test_run_names(text, name):
    assert plain_name(Path(text).stem) == name


def test_a_config_with_a_text_and_minutes(cli, tiny_config, tmp_path):
    other = tmp_path / "other: text.txt"
    other.write_text("the quick brown fox\n" * 200)
    result = cli("train", other, "--config", tiny_config, "--minutes", 0.02, "--run-dir", tmp_path / "run")
    assert (result.code, result.out) == (0, "")
    train = load_config(tmp_path / "run/config.yaml").train
    assert (train.max_minutes, train.max_steps, train.max_epochs) == (0.02, None, None)
    assert load_config(tmp_path / "run/config.yaml").data.source == str(other)


@pytest.mark.usefixtures("quick")
def test_suggest_prints_a_config(cli, text_file, tmp_path):
    result = cli("config", "suggest", text_file, "--minutes", 2, "--set", "model.cell.kind=rhn")
    assert result.code == 0
    file = tmp_path / "mine.yaml"
    file.write_text(result.out)
    config = load_config(file)
    assert (config.model.cell.kind, config.train.max_minutes) == ("rhn", 2)
    assert "    hidden: " in result.out
    assert "# Hidden units of each layer, H\n" in result.out
    assert "sample_length" not in result.out  # it keeps its default
    assert re.search(r"  activation_penalty: .* # Weight of AR \(Merity et al\. 2017\): mean square", result.out)
    assert re.search(r"  betas: .* # Shares that each update keeps of the averages", result.out)


@pytest.mark.parametrize(
    "command", [["train", "x"], ["plan", "x"], ["config", "suggest", "x"], ["train", "--resume", "--run-dir", "r"]]
)
@pytest.mark.parametrize("override", ["train.max_minutes=3", "train.max_minutes =3", "train={max_minutes: 3}"])
def test_minutes_that_are_given_twice(cli, command, override):
    fault = "train.max_minutes: found beside minutes or its default; allowed: minutes alone"
    assert cli(*command, "--minutes", 1, "--set", override).error == fault


@pytest.mark.parametrize("command", [["train", "x"], ["train", "--resume", "--run-dir", "r"], ["compare", "x"]])
@pytest.mark.parametrize(("minutes", "found"), [(0, "0.0"), ("nan", "nan"), (1e307, "1e+307")])
def test_minutes_out_of_range(cli, command, minutes, found):
    error = cli(*command, "--minutes", minutes).error
    assert error == f"minutes: found {found}; allowed: a number from 0.0001 to 525,600"


def test_a_validation_score_that_rises_is_said(cli, tiny_config, tmp_path):
    (tmp_path / "text.txt").write_text("ab" * 400 + "cd" * 400)
    result = cli(
        "train", tmp_path / "text.txt", "--config", tiny_config, "--run-dir", tmp_path / "run",
        "--set", "data.split=[0.5,0.5,0]", "--set", "train.max_steps=60", "--set", "optimizer.lr=0.05",
    )  # fmt: skip
    assert re.search(r"^best     after update \d+ the validation score rose to \d+\.\d+ nats", result.err, re.MULTILINE)
