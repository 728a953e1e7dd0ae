"""A run works from every folder; if its text moves, a resume names the new place."""

import json
import sys
from pathlib import Path

import pytest

from charlm.config import load_config, parse_config
from charlm.data.sources import with_absolute_paths
from tests.conftest import TINY
from tests.text import BYTE, words_text


def trained(cli, source: str) -> Path:
    """A run on a text in the current folder, made there."""
    Path("texts").mkdir()
    Path("texts/my.txt").write_text(words_text(20_000))
    Path("tiny.yaml").write_text(TINY.format(source=json.dumps(source)))
    result = cli("train", "--config", "tiny.yaml", "--run-dir", "runs/mine")
    assert result.code == 0, result
    assert f"data     {source}: 20 kB in 1 file" in result.err
    return Path("runs/mine").absolute()


def score(cli, run: Path) -> float:
    return json.loads(cli("eval", run, "--json").out)["nats_per_char"]


@pytest.mark.parametrize("source", ["./texts/my.txt", "texts/*.txt"])
def test_from_another_folder_and_after_a_move_of_the_text(cli, tmp_path, monkeypatch, source):
    folder = tmp_path / "project [1]"  # a name that looks like a pattern
    for each in (folder, tmp_path / "elsewhere"):
        each.mkdir()
    monkeypatch.chdir(folder)
    run = trained(cli, source)
    expected = score(cli, run)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert score(cli, run) == expected
    assert cli("sample", run, "--novelty", "--length", 20).code == 0
    resume = ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=7"]
    assert cli(*resume).code == 0
    expected = score(cli, run)
    (folder / "texts").rename(tmp_path / "moved")
    moved = tmp_path / source.replace("./", "").replace("texts", "moved")
    result = cli(*resume, "--set", f"data.source={moved}")
    assert (result.code, "change   data.source: " in result.err) == (0, True)
    assert load_config(run / "config.yaml").data.source == str(moved)
    assert score(cli, run) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode")
def test_in_a_folder_whose_name_is_not_unicode_a_run_works_from_there(cli, tmp_path, monkeypatch):
    folder = tmp_path / BYTE
    folder.mkdir()
    monkeypatch.chdir(folder)
    run = trained(cli, "texts/my.txt")
    assert cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=7").code == 0


def test_which_paths_a_run_keeps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a[1].txt").touch()
    kept = {
        "my.txt": f"{tmp_path}/my.txt",
        "../my.txt": f"{tmp_path}/../my.txt",
        "a[1].txt": f"{tmp_path}/a[1].txt",
        "**/*.txt": f"{tmp_path}/**/*.txt",
        "/texts/my.txt": "/texts/my.txt",
        "~/my.txt": "~/my.txt",
        "builtin:unicode-names": "builtin:unicode-names",
    }
    for source, path in kept.items():
        data = with_absolute_paths(parse_config({"data": {"source": source, "valid_source": source}}, "x")).data
        assert (data.source, data.valid_source, data.test_source) == (path, path, None)
