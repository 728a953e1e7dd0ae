"""`charlm train --resume`."""

from tests.text import words_text


def test_with_other_options_of_the_model(cli, copied_run):
    words = ["--set", "model.cell.hidden=32", "--set", "train.bptt=9", "--set", "train.max_steps=9"]
    result = cli("train", "--resume", "--run-dir", copied_run, *words)
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "error: model.cell.hidden: found 32, the run has 16; allowed on --resume: the same; start a new run\n"
        "error: train.bptt: found 9, the run has 8; allowed on --resume: the same; start a new run\n"
    )


def test_with_another_kind(cli, copied_run):
    words = ["--set", "optimizer.name=sgd", "--set", "model.cell.kind=gru"]
    result = cli("train", "--resume", "--run-dir", copied_run, *words)
    assert result.err == (
        "error: optimizer.name: found 'sgd', the run has 'adamw'; allowed on --resume: the same; start a new run\n"
        "error: model.cell.kind: found 'gru', the run has 'lstm'; allowed on --resume: the same; start a new run\n"
    )
    words = ["--set", "optimizer.schedule.name=cosine", "--set", "train.max_steps=7"]
    assert cli("train", "--resume", "--run-dir", copied_run, *words).code == 0
    words = ["--set", "optimizer.schedule.name=constant", "--set", "train.max_steps=8"]
    assert (
        "change   optimizer.schedule.name: 'cosine' → 'constant'\n"
        in cli("train", "--resume", "--run-dir", copied_run, *words).err
    )


def test_with_another_config_file(cli, copied_run, tiny_config):
    result = cli("train", "--resume", "--run-dir", copied_run, "--config", tiny_config)
    assert result.code == 0
    moved = tiny_config.with_name("text.txt")
    assert result.err.startswith("change   data.source: ")
    assert result.err.splitlines()[0].endswith(f"→ '{moved}'")


def test_with_a_changed_corpus(cli, tiny_config, text_file, tmp_path):
    run = tmp_path / "run"
    assert cli("train", "--config", tiny_config, "--run-dir", run).code == 0
    text_file.write_text(words_text(20_001, seed=1)[1:])
    assert cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=9").error == (
        f"{text_file}: the text has changed since the run was trained, and so have its splits; "
        "allowed: the same text; train on a new text with --init-from, score one with --file"
    )
    assert cli("eval", run).error.startswith(f"{text_file}: the text has changed since the run was trained")
    assert cli("eval", run, "--file", text_file).code == 0
    text_file.write_text(words_text(19_999) + "Z")
    assert cli("eval", run).error.startswith(f"{text_file}: the text has changed since the run was trained")


def test_from_a_damaged_checkpoint(cli, copied_run):
    """The newest whole one takes its place; with none left, one line."""
    last = copied_run / "checkpoints" / "last.safetensors"
    best = last.with_name("best.safetensors")
    best.write_bytes(best.read_bytes())  # no longer the same file under another name
    last.write_bytes(last.read_bytes()[:-1])
    result = cli("train", "--resume", "--run-dir", copied_run, "--set", "train.max_steps=8")
    assert result.code == 0
    assert f"damaged  {last}: damaged, or not a checkpoint (" in result.err
    assert f"resume   {best}, step 6\n" in result.err
    assert "done     max_steps at step 8" in result.err
    for path in last.parent.iterdir():
        path.write_bytes(b"")
    error = cli("train", "--resume", "--run-dir", copied_run).error
    assert error.startswith(f"{last}: damaged, or not a checkpoint (")
    assert error.endswith(f"; use another one of the run; no other checkpoint in {last.parent} is whole")


def test_a_checkpoint_of_a_later_version_is_not_passed_over(cli, copied_run):
    last = copied_run / "checkpoints" / "last.safetensors"
    last.write_bytes(last.read_bytes().replace(b'"version":"1"', b'"version":"2"'))
    error = cli("train", "--resume", "--run-dir", copied_run).error
    assert error == f"{last}: found format version 2; this charlm reads 1; update charlm"
