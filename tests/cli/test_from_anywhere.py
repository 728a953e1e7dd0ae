"""A run works from every folder, and may move together with its text."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from charlm.checkpoint import read_checkpoint, save_checkpoint
from charlm.config import load_config, parse_config
from charlm.data.sources import with_absolute_paths
from tests.conftest import TINY
from tests.text import words_text


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """The current folder, whose name looks like a pattern, with a text."""
    folder = tmp_path / "project [1]"
    (folder / "texts").mkdir(parents=True)
    (folder / "texts/my.txt").write_text(words_text(20_000))
    monkeypatch.chdir(folder)
    return folder


def trained(cli, source: str) -> None:
    Path("tiny.yaml").write_text(TINY.format(source=json.dumps(source)))
    result = cli("train", "--config", "tiny.yaml", "--run-dir", "runs/mine")
    assert result.code == 0, result
    assert f"data     {source}: 20 kB in 1 file" in result.err


def score(cli, run: Path) -> float:
    return json.loads(cli("eval", run, "--json").out)["nats_per_char"]


@pytest.mark.parametrize("source", ["./texts/my.txt", "texts", "texts/*.txt"])
def test_from_another_folder_and_after_a_move(cli, project, tmp_path, monkeypatch, source):
    trained(cli, source)
    expected, run = score(cli, project / "runs/mine"), project / "runs/mine"
    again = cli("train", "--resume", "--run-dir", run, "--config", "tiny.yaml")
    assert (again.code, "change" in again.err) == (0, False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert score(cli, run) == expected
    assert cli("sample", run, "--novelty", "--length", 20).code == 0
    assert cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=7").code == 0

    expected = score(cli, run)
    project.rename(tmp_path / "moved")
    run, moved = tmp_path / "moved/runs/mine", tmp_path / "moved" / source
    result = cli("eval", run, "--json")
    assert json.loads(result.out)["nats_per_char"] == expected
    assert result.err.startswith("data     ")
    assert f": not there; found {moved}\n" in result.err
    assert cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=8").code == 0
    assert load_config(run / "config.yaml").data.source == str(moved)


def test_a_run_of_an_older_version_kept_a_relative_path(cli, project, tmp_path, monkeypatch):
    trained(cli, "texts/my.txt")
    for file in Path("runs/mine/checkpoints").iterdir():
        checkpoint = read_checkpoint(file)
        data = checkpoint.config.data.model_copy(update={"source": "texts/my.txt"})
        save_checkpoint(replace(checkpoint, config=checkpoint.config.model_copy(update={"data": data})), file)
    expected = score(cli, Path("runs/mine"))
    monkeypatch.chdir(tmp_path)
    assert score(cli, project / "runs/mine") == expected
    Path("other.txt").write_text(words_text(20_000))
    words = ["--set", "data.source=other.txt", "--set", "train.max_steps=7"]
    result = cli("train", "--resume", "--run-dir", project / "runs/mine", *words)
    assert f"change   data.source: '{project}/texts/my.txt' → '{tmp_path}/other.txt'\n" in result.err


@pytest.mark.parametrize(
    ("source", "kept"),
    [
        ("my.txt", "{here}/my.txt"),
        ("none.txt", "{here}/none.txt"),
        ("../my.txt", "{here}/../my.txt"),
        ("a[1].txt", "{here}/a[1].txt"),
        ("**/*.txt", "{escaped}/**/*.txt"),
        ("-", "{here}/-"),
        ("/texts/my.txt", "/texts/my.txt"),
        ("~/my.txt", "~/my.txt"),
        ("builtin:unicode-names", "builtin:unicode-names"),
    ],
)
def test_which_paths_a_run_keeps(project, source, kept):
    Path("a[1].txt").touch()
    config = with_absolute_paths(parse_config({"data": {"source": source, "valid_source": source}}, "x"))
    kept = kept.format(here=project, escaped=str(project).replace("[", "[[]"))
    assert (config.data.source, config.data.valid_source, config.data.test_source) == (kept, kept, None)
