"""`charlm eval`."""

import csv
import hashlib
import json
import math
import re

import pytest

from charlm.checkpoint import read_checkpoint, save_checkpoint

KEYS = ("checkpoint", "step", "precision", "text", "nats_per_char", "bits_per_char", "perplexity_per_char",
        "bits_per_byte", "chars_per_s")  # fmt: skip


def table(result):
    return dict(re.split(" +", line, maxsplit=1) for line in result.out.splitlines())


def test_splits(cli, trained_run, text_file):
    names = "first 90 % of text.txt", "last 5 % of text.txt", "5 % of text.txt before the last 5 %"
    for split, name, chars, at in zip(("train", "test", "valid"), names, (17_999, 999, 999), (0, 19, 18), strict=True):
        value = json.loads(cli("eval", trained_run, "--split", split, "--json").out)
        assert tuple(value) == KEYS
        digest = hashlib.sha256(text_file.read_bytes()[1000 * at :][: chars + 1]).hexdigest()
        of = {"name": name, "sha256": digest, "chars": chars, "size_bytes": chars, "unknown": 0}
        assert (value["text"], value["step"]) == (of, 6)
        assert value["bits_per_char"] == value["bits_per_byte"] == pytest.approx(value["nats_per_char"] / math.log(2))
        assert value["perplexity_per_char"] == pytest.approx(math.exp(value["nats_per_char"]))
    coarse = json.loads(cli("eval", trained_run, "--precision", "bf16", "--json").out)
    assert (coarse["precision"], coarse["nats_per_char"] == value["nats_per_char"]) == ("bf16", False)
    rows = table(cli("eval", trained_run))  # valid is the default
    assert tuple(rows) == (*KEYS, "characters", "unknown")
    assert (rows["nats_per_char"], rows["characters"]) == (f"{value['nats_per_char']:.4f}", "999")


def test_per_char_adds_up_and_the_dynamic_score_stands_beside_the_static_one(cli, trained_run, write, tmp_path):
    text = "so\ntee\n" * 30
    words = ["eval", trained_run, "--file", write("other.txt", text), "--per-char", tmp_path / "scores.csv", "--json"]

    def per_char_nats():
        with (tmp_path / "scores.csv").open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        assert header == ["position", "character", "nats", "bits"]
        assert [(int(position), symbol) for position, symbol, *_ in rows] == list(enumerate(text))[1:]
        return sum(float(nats) for _, _, nats, _ in rows) / len(rows)

    static = json.loads(cli(*words).out)
    assert per_char_nats() == pytest.approx(static["nats_per_char"], abs=1e-5)
    value = json.loads(cli(*words, "--dynamic").out)
    dynamic = value.pop("dynamic")
    assert per_char_nats() == pytest.approx(dynamic["nats_per_char"], abs=1e-5)
    assert value | {"chars_per_s": 0} == static | {"chars_per_s": 0}
    assert dynamic["nats_per_char"] < static["nats_per_char"] - 0.01
    rows = table(cli(*words[:-1], "--dynamic"))
    assert rows["nats_per_char"] == f"{value['nats_per_char']:.4f} static  {dynamic['nats_per_char']:.4f} dynamic"


def test_novelty_counts_windows_of_the_training_text(cli, trained_run, text_file, write):
    training_text = text_file.read_text()
    text = training_text[100:190] + "mmm" + training_text[300:310]
    words = ["eval", trained_run, "--file", write("sample.txt", text), "--novelty"]
    longest, stretch, share, unread = json.loads(cli(*words, "--json").out)["novelty"].values()
    assert unread == []
    assert share == pytest.approx(sum(text[at : at + 20] in training_text for at in range(84)) / 84)
    assert (len(stretch), stretch in text, stretch in training_text) == (longest, True, True)
    rows = table(cli(*words))
    assert rows["copied"] == f"{100 * share:.1f}% of its windows of 20 characters occur in the training texts"
    assert rows["longest_copy"] == f"{longest} characters: {stretch!r}"


def test_what_needs_the_training_text(cli, tiny_config, text_file, tmp_path, write):
    run, file = tmp_path / "run", write("other.txt", "so\ntee\n" * 30)
    cli("train", "--config", tiny_config, "--run-dir", run, "--set", "data.split=[1, 0, 0]")
    assert cli("eval", run).error == "--split valid: the run has none; allowed: train, or --file FILE"
    text_file.write_text("so\ntee\n" * 30)
    resume = ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=9"]
    for words in (["eval", run, "--file", file, "--dynamic"], ["eval", run, "--file", file, "--novelty"], resume):
        assert cli(*words).error.startswith(f"{text_file}: the text has changed since training"), words
    text_file.unlink()
    assert cli(*resume).error.startswith(f"{text_file}: no such file or folder; allowed: the run's text; ")
    assert cli("eval", run, "--file", file).code == 0


def test_unknown_characters_are_skipped(cli, trained_run, write):
    file = write("other.txt", "so\nZ so Z, é\n")
    skipped = cli("eval", trained_run, "--file", file, "--skip-unknown", "--json")
    assert skipped.err.endswith(f"skipped  {file}: 4 characters: 'Z' (U+005A), ',' (U+002C), 'é' (U+00E9)\n")
    of = json.loads(skipped.out)["text"]
    assert (of["chars"], of["unknown"]) == (8, 4)


def test_weights_that_overflow_are_told_and_no_json_holds_nan(cli, copied_run, text_file, tmp_path):
    """Their numbers are finite, their logits are not."""
    path = copied_run / "checkpoints" / "best.safetensors"
    checkpoint = read_checkpoint(path)
    for tensor in checkpoint.weights.values():
        tensor.fill_(3e38)
    save_checkpoint(checkpoint, path)
    for words in (["next", path, "--json"], ["look", path, "--out", tmp_path / "page.html"]):
        assert "error: logits: found numbers that are not finite; use another checkpoint" in cli(*words).err, words
    for words in (["eval", path], ["score", path, text_file], ["score", path, text_file, "--above", "1"]):
        lines = cli(*words, "--json").out.splitlines()
        assert lines, words
        for line in lines:
            assert json.loads(line, parse_constant=pytest.fail)["bits_per_char"] is None
