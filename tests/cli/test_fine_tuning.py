"""`charlm train --init-from`."""

import json

import pytest

import charlm
from charlm.config import load_config
from tests.text import SEEN, words_text


@pytest.fixture
def quick(monkeypatch):
    """Speeds that nothing measures."""
    monkeypatch.setattr("charlm.choice.speed.measure", lambda config, *_: 1e-8 * config.model.cell.hidden**2)


@pytest.mark.usefixtures("quick")
def test_a_text_alone_takes_the_model_of_the_run(cli, trained_run, tmp_path):
    more, run = tmp_path / "more.txt", tmp_path / "run"
    more.write_text(words_text(8000, seed=3))
    words = ["train", more, "--init-from", trained_run, "--minutes", 0.02]
    result = cli(*words, "--run-dir", run, "--set", "train.bptt=16", "--json")
    assert result.code == 0
    assert json.loads(result.out)["step"] > 0
    assert f"lstm, 1 × 16 units, 2,014 parameters: the model of {trained_run}, which is trained on\n" in result.err
    assert "expect" not in result.err
    old, new = (load_config(each / "config.yaml") for each in (trained_run, run))
    assert new.model.model_copy(update={"dropout": old.model.dropout}) == old.model
    assert (new.data.source, new.train.bptt, new.train.max_minutes) == (str(more), 16, 0.02)
    assert cli(*words, "--set", "model.cell.hidden=32").error == (
        "model.cell.hidden: found 32; the checkpoint of --init-from has 16; allowed: the same"
    )
    assert cli(*words, "--set", "model.cell.kind=gru").error == (
        "model.cell.kind: found 'gru'; the checkpoint of --init-from has 'lstm'; allowed: the same"
    )
    more.write_text(words_text(8000, seed=3) + "É")
    assert cli(*words).error.startswith("data.source: the checkpoint of --init-from has never seen 'É' (U+00C9); ")
    grown = charlm.train(
        more, init_from=trained_run, minutes=0.02, run_dir=tmp_path / "grown", overrides={"data.grow_vocabulary": True}
    )
    assert grown.outcome.step > 0
    assert grown.load().vocabulary.characters.endswith("É")


@pytest.mark.usefixtures("quick")
def test_the_model_of_lines_stays_one_of_lines(cli, tiny_config, trained_run, tmp_path):
    lines, run = tmp_path / "lines.txt", tmp_path / "run"
    lines.write_text("".join(f"{line}\n" for line in dict.fromkeys(words_text(8000).splitlines())))
    first = ["--config", tiny_config, lines, "--lines", "--run-dir", run, "--set", "data.split=[0.8,0.2,0]"]
    assert cli("train", *first).code == 0
    again = ["--init-from", run, "--run-dir", tmp_path / "again", "--minutes", 0.02]
    assert cli("train", lines, *again).code == 0
    assert load_config(tmp_path / "again/config.yaml").data.unit == "line"


def test_unseen_characters_and_a_grown_vocabulary(cli, tiny_config, trained_run, tmp_path):
    more = tmp_path / "more.txt"
    more.write_text(words_text(4000, seed=3) + "É Z\n" * 200)
    run = tmp_path / "run"
    words = ["train", "--config", tiny_config, "--run-dir", run, "--init-from", trained_run]
    words += ["--set", f"data.source={more}"]
    assert cli(*words).error == (
        f"data.source: the checkpoint of --init-from has never seen 'Z' (U+005A), 'É' (U+00C9); allowed: {SEEN}; "
        "--set data.grow_vocabulary=true adds the new ones"
    )
    assert not run.exists()
    grown = cli(*words, "--set", "data.grow_vocabulary=true")
    assert grown.code == 0
    assert "grow     2 new characters: 'Z' (U+005A), 'É' (U+00C9)\n" in grown.err
    written = cli("sample", run, "--prompt", "É Z", "--length", 5, "--seed", 1)
    assert (written.code, written.out[:3]) == (0, "É Z")
    assert cli("eval", run, "--split", "test").code == 0
    assert cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=7").code == 0
