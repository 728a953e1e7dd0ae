"""A run works from every folder; if its text moves, a resume names the new place."""

import json
from pathlib import Path

import pytest

from charlm.config import load_config
from tests.conftest import TINY
from tests.text import words_text


@pytest.mark.parametrize("source", ["./texts/my.txt", "texts/*.txt"])
def test_from_another_folder_and_after_a_move_of_the_text(cli, tmp_path, monkeypatch, write, source):
    folder, run = tmp_path / "project [1]", tmp_path / "project [1]/runs/mine"  # a name that looks like a pattern
    text = Path(write("project [1]/texts/my.txt", words_text(20_000)))
    (tmp_path / "elsewhere").mkdir()
    resume = ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=7"]

    def score():
        return json.loads(cli("eval", run, "--json").out)["nats_per_char"]

    monkeypatch.chdir(folder)
    Path("tiny.yaml").write_text(TINY.format(source=json.dumps(source)))
    assert f"data     {source}: 20 kB in 1 file" in cli("train", "--config", "tiny.yaml", "--run-dir", "runs/mine").err
    expected = score()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert score() == expected
    assert cli(*resume).code == 0
    expected = score()
    text.parent.rename(tmp_path / "moved")
    moved = f"{tmp_path}/moved/{Path(source).name}"
    assert "change   data.source: " in cli(*resume, "--set", f"data.source={moved}").err
    assert load_config(run / "config.yaml").data.source == moved
    assert score() == expected
