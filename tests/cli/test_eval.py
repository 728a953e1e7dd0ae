"""`charlm eval`."""

import csv
import json
import math
import re

import pytest

from charlm import load
from charlm.checkpoint import read_checkpoint, save_checkpoint
from charlm.inference.dynamic import evaluate_dynamically
from tests.text import words_text

KEYS = ("checkpoint", "step", "text", "precision", "nats_per_char", "bits_per_char", "targets", "chars_per_s")


def table(result):
    return dict(re.split(" +", line, maxsplit=1) for line in result.out.splitlines())


def test_splits(cli, trained_run):
    for split, targets in (("train", 17_999), ("test", 999), ("valid", 999)):
        result = cli("eval", trained_run, "--split", split, "--json")
        assert (result.code, result.out.count("\n")) == (0, 1)
        value = json.loads(result.out)
        assert tuple(value) == KEYS
        assert (value["text"], value["targets"], value["step"]) == (split, targets, 6)
        assert value["bits_per_char"] == pytest.approx(value["nats_per_char"] / math.log(2))
    rows = table(cli("eval", trained_run))  # valid is the default
    assert tuple(rows) == KEYS
    assert (rows["nats_per_char"], rows["targets"]) == (f"{value['nats_per_char']:.4f}", "999")
    assert rows["checkpoint"] == str(trained_run / "checkpoints" / "best.safetensors")


def test_precision(cli, trained_run, write):
    """In every command that runs a model; that of the training is fp32."""
    text = write("a.txt", words_text(300))
    for command in (["sample"], ["next"], ["eval"], ["score", text]):
        name, *words = command
        assert "precision bf16" not in cli(name, trained_run, *words).err
        other = cli(name, trained_run, *words, "--precision", "bf16")
        assert other.code == 0
        assert "device" not in other.err
    value = json.loads(cli("eval", trained_run, "--precision", "bf16", "--json").out)
    assert value["precision"] == load(trained_run, "cpu", precision="bf16").network.precision == "bf16"
    assert value["nats_per_char"] != json.loads(cli("eval", trained_run, "--json").out)["nats_per_char"]
    assert cli("sample", trained_run, "--device", "cpu", "--precision", "tf32").error == (
        "precision: found tf32, which cpu (1 thread) lacks; allowed here: fp32 | bf16"
    )


def test_per_char_adds_up(cli, trained_run, write, tmp_path):
    text = "so\ntee\n" * 30
    words = ["eval", trained_run, "--file", write("other.txt", text), "--json", "--per-char", tmp_path / "scores.csv"]
    scores = []
    for dynamic in ([], ["--dynamic"]):
        value = json.loads(cli(*words, *dynamic).out)
        assert (value["text"], value["targets"]) == (str(tmp_path / "other.txt"), len(text) - 1)
        with (tmp_path / "scores.csv").open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        assert header == ["position", "character", "nats", "bits"]
        assert [(int(position), symbol) for position, symbol, *_ in rows] == list(enumerate(text))[1:]
        scores.append(sum(float(row[2]) for row in rows) / len(rows))
        assert scores[-1] == pytest.approx(value.get("dynamic", value)["nats_per_char"], abs=1e-5)
        assert sum(float(row[3]) for row in rows) / len(rows) == pytest.approx(scores[-1] / math.log(2), abs=1e-5)
    assert scores[0] != pytest.approx(scores[1], abs=1e-3)


def test_dynamic(cli, trained_run):
    path = trained_run / "checkpoints" / "best.safetensors"
    before = path.read_bytes()
    static = json.loads(cli("eval", trained_run, "--json").out)  # so short a text is read in one stream
    words = ["eval", trained_run, "--dynamic"]
    result = cli(*words, "--json")
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    value = json.loads(result.out)
    dynamic = value.pop("dynamic")
    assert value | {"chars_per_s": 0} == static | {"chars_per_s": 0}
    assert list(dynamic) == [*KEYS[4:], "lr", "decay", "steps"]
    assert dynamic["nats_per_char"] < static["nats_per_char"]
    # The sizes of the gradients are measured on the training text.
    model = load(trained_run)
    train_ids, ids = (
        model.vocabulary.encode(words_text(20_000)[part]) for part in (slice(18_000), slice(18_000, 19_000))
    )
    scored = evaluate_dynamically(model.network, ids, train_ids)
    assert dynamic["nats_per_char"] == pytest.approx(scored.nats_per_char)
    assert dynamic["bits_per_char"] == pytest.approx(dynamic["nats_per_char"] / math.log(2))
    assert (dynamic["targets"], dynamic["lr"], dynamic["steps"]) == (999, 0.0005, 50)

    rows = table(cli(*words))
    assert tuple(rows) == (*KEYS, "dynamic")
    for key in ("nats_per_char", "bits_per_char"):
        assert rows[key] == f"{value[key]:.4f} static  {dynamic[key]:.4f} dynamic"
    assert rows["dynamic"] == f"lr 0.0005, decay {dynamic['decay']}, steps 50"
    assert path.read_bytes() == before


def test_what_needs_the_training_text(cli, tiny_config, text_file, tmp_path):
    run, file = tmp_path / "run", tmp_path / "other.txt"
    assert cli("train", "--config", tiny_config, "--run-dir", run).code == 0
    file.write_text("so\ntee\n" * 30)
    text_file.write_text("so\ntee\n" * 30)
    needing = (["eval", run, "--file", file, "--dynamic"], ["sample", run, "--novelty"])
    has_changed = f"{text_file}: the text has changed since the run was trained, and so have its splits; allowed: the "
    is_gone = (
        f"{text_file}: no such file or folder, where the text of the run was; allowed: the same text; put it back, or "
        "name its new place once: charlm train --resume --run-dir RUN --set data.source=PATH"
    )
    for fault in (has_changed, is_gone):
        for *words, option in needing:
            for error in (cli(*words, option).error, cli(*words, option, "--json").error):
                assert error.startswith(fault)
            assert cli(*words).code == 0
        assert cli("eval", run).error.startswith(fault)
        assert cli("train", "--resume", "--run-dir", run, "--set", "train.max_steps=9").error.startswith(fault)
        text_file.unlink(missing_ok=True)


def test_absent_split(cli, tiny_config, tmp_path):
    run = tmp_path / "run"
    words = ["--set", "data.split=[1, 0, 0]", "--set", "train.max_steps=1"]
    assert cli("train", "--config", tiny_config, "--run-dir", run, *words).code == 0
    for given, split in ((["--split", "test"], "test"), ([], "valid")):
        assert cli("eval", run, *given).error == (f"--split {split}: the run has none; allowed: train, or --file FILE")


def test_unknown_characters_of_a_file(cli, trained_run, tmp_path):
    file = tmp_path / "other.txt"
    file.write_text("so\nZ so Z, é\n", encoding="utf-8")
    listed = "'Z' (U+005A), ',' (U+002C), 'é' (U+00E9)"
    assert cli("eval", trained_run, "--file", file).error == (
        f"{file}: found {listed}, which the model has never seen; allowed: its 14 characters; use text without others "
        "or a model that knows them; --skip-unknown leaves them out"
    )
    skipped = cli("eval", trained_run, "--file", file, "--skip-unknown", "--json")
    assert skipped.code == 0
    assert (
        skipped.err.splitlines(True)[-1] == f"skipped  {file}: 4 characters: 'Z' (U+005A), ',' (U+002C), 'é' (U+00E9)\n"
    )
    assert json.loads(skipped.out)["targets"] == 8


def test_weights_that_overflow_are_told_and_no_json_holds_nan(cli, copied_run, text_file, tmp_path):
    """Their numbers are finite, their logits are not."""
    path = copied_run / "checkpoints" / "best.safetensors"
    checkpoint = read_checkpoint(path)
    for tensor in checkpoint.weights.values():
        tensor.fill_(3e38)
    save_checkpoint(checkpoint, path)
    error = "logits: found numbers that are not finite; use another checkpoint of the run, or another text"
    for words in (["next", path, "--json"], ["look", path, "--out", tmp_path / "page.html"]):
        assert cli(*words).err.splitlines()[-1] == f"error: {error}", words
    for words in (["eval", path], ["score", path, text_file], ["score", path, text_file, "--above", "1"]):
        lines = cli(*words, "--json").out.splitlines()
        assert lines, words
        for line in lines:
            assert json.loads(line, parse_constant=pytest.fail)["bits_per_char"] is None
