"""A run works from every folder; if its text moves, a resume names the new place."""

import json
import os
import sys
from pathlib import Path

import pytest

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
def test_from_another_folder_and_after_a_move_of_the_text(cli, project, tmp_path, monkeypatch, source):
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
    (project / "texts").rename(tmp_path / "moved")
    assert "no such file or folder, where the text of the run was" in cli("eval", run).error
    moved = tmp_path / source.replace("./", "").replace("texts", "moved")
    words = ["--resume", "--run-dir", run, "--set", f"data.source={moved}", "--set", "train.max_steps=8"]
    result = cli("train", *words)
    assert (result.code, "change   data.source: " in result.err) == (0, True)
    assert load_config(run / "config.yaml").data.source == str(moved)
    assert score(cli, run) <= expected


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


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode")
def test_in_a_folder_whose_name_is_not_unicode(cli, tmp_path, monkeypatch):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("my.txt").write_text(words_text(20_000))
    trained(cli, "my.txt")
    assert score(cli, Path("runs/mine")) > 0
    assert cli("train", "--resume", "--run-dir", "runs/mine", "--set", "train.max_steps=7").code == 0
