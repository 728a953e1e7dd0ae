"""`charlm train --init-from`."""

from tests.text import SEEN, words_text


def test_other_model(cli, tiny_config, trained_run, tmp_path):
    words = ["--init-from", trained_run, "--set", "model.cell.hidden=32", "--set", "model.cell.kind=gru"]
    result = cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run", *words, "--set", "seed=2")
    assert result.code == 1
    assert result.err == (
        "error: model.cell.kind: found 'gru'; the checkpoint of --init-from has 'lstm'; allowed: the same\n"
    )


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


def test_missing_checkpoint(cli, tiny_config, tmp_path):
    words = ["--run-dir", tmp_path / "run", "--init-from", tmp_path / "no"]
    assert cli("train", "--config", tiny_config, *words).error == (
        f"{tmp_path}/no: no such file; allowed: a run's folder or a checkpoint in its checkpoints/"
    )
