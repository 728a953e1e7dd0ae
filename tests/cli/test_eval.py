"""`charlm eval`."""

import csv
import hashlib
import json
import math
import os
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from charlm.checkpoint import read_checkpoint, save_checkpoint
from tests.text import words_text

KEYS = ("checkpoint", "step", "precision", "text", "nats_per_char", "bits_per_char", "perplexity_per_char",
        "bits_per_byte", "chars_per_s")  # fmt: skip


def table(result):
    return dict(re.split(" +", line, maxsplit=1) for line in result.out.splitlines())


def test_splits(cli, trained_run, text_file):
    names = "first 90% of text.txt", "last 5% of text.txt", "5% of text.txt before the last 5%"
    rows = zip(("train", "test", "valid"), names, (17_999, 999, 999), (0, 19, 18), (1.0, None, 0.0), strict=True)
    for split, name, chars, at, seen in rows:
        value = json.loads(cli("eval", trained_run, "--split", split, "--json").out)
        assert tuple(value) == KEYS
        digest = hashlib.sha256(text_file.read_bytes()[1000 * at :][: chars + 1]).hexdigest()
        of = {"name": name, "sha256": digest, "chars": chars, "size_bytes": chars, "unknown": 0, "seen": seen}
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


def test_novelty_searches_the_texts_of_all_runs(cli, tiny_config, text_file, write, tmp_path):
    """A passage of the first text is found in what the second run's weights have read."""
    more, run = write("more.txt", "".join(reversed(words_text(9_000)))), tmp_path / "second"
    cli("train", "--config", tiny_config, "--run-dir", tmp_path / "first")
    source = ["--set", f"data.source={more}", "--init-from", tmp_path / "first"]
    assert cli("train", "--config", tiny_config, "--run-dir", run, *source).code == 0
    first = words_text(20_000)[2_000:2_100]
    words = ["eval", run, "--file", write("sample.txt", f"mmm{first}mmm"), "--novelty"]
    passages = [{"start": 3, "length": 100, "text": first}]
    novelty = {"windows_share": 81 / 87, "passages": passages, "not_searched": []}
    assert json.loads(cli(*words, "--json").out)["novelty"] == novelty
    shown = table(cli(*words))
    assert shown["copied"] == "93.1% of its windows of 20 characters occur in the training texts"
    assert shown["copy_at_3"] == f"100 characters: {first!r}"
    text_file.unlink()
    found = cli(*words)
    assert "text.txt of an earlier run: " in table(found)["not_searched"]
    assert "skipped  not searched: text.txt of an earlier run: " in found.err


def test_a_score_says_which_share_of_its_text_the_weights_were_trained_on(cli, tiny_config, text_file, tmp_path, write):
    """The first run reads 90% of a text; the next one is validated on its last half."""
    copy, runs = write("copy.txt", text_file.read_text()), [tmp_path / name for name in ("first", "half", "unread")]
    cli("train", "--config", tiny_config, "--run-dir", runs[0])
    words = ["train", copy, "--config", tiny_config, "--init-from", runs[0], "--set", "data.split=[0.5,0.5,0]"]
    half = cli(*words, "--run-dir", runs[1], "--json")
    assert "the weights were trained on 80% of the validation text, so its scores are too good" in half.err
    found = json.loads(cli("eval", runs[1], "--json").out)["text"]
    assert found == json.loads(half.out)["scored"]
    assert found["seen"] == pytest.approx(0.8, abs=1e-3)
    assert table(cli("eval", runs[1]))["trained_on"] == "80% of the text"
    more = cli("train", "--resume", "--run-dir", runs[1], "--set", "train.max_steps=7", "--json")
    assert json.loads(more.out)["scored"] == found
    Path(copy).write_text(text_file.read_text() + "\nso")
    text_file.unlink()
    unread = cli(*words, "--run-dir", runs[2], "--json")
    assert (
        "note     the weights may have been trained on the validation text: text.txt of an earlier run: " in unread.err
    )
    assert json.loads(unread.out)["scored"]["seen"] is None
    assert "), perhaps trained on; last 50% of copy.txt (" in cli("runs", tmp_path).err


def test_models_of_bytes_and_of_characters_are_scored_on_one_text(cli, tiny_config, write, tmp_path):
    text = write("text.txt", words_text(20_000).replace("e", "é").replace("o", "😀"))
    scored, mean = {}, {}
    for level in ("char", "byte"):
        run = tmp_path / level
        done = cli("train", text, "--config", tiny_config, "--run-dir", run, "--set", f"data.level={level}", "--json")
        scored[level] = json.loads(done.out)["scored"]
        value = json.loads(cli("eval", run, "--json", "--per-char", tmp_path / f"{level}.csv").out)
        mean[level] = value["nats_per_char"]
        assert value["text"] == scored[level]
        total = value["bits_per_char"] * scored[level]["chars"]
        assert total == pytest.approx(value["bits_per_byte"] * scored[level]["size_bytes"])
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert rows[-1]["nats"] == pytest.approx(value["nats_per_char"], rel=1e-5)
        symbols = scored[level]["chars" if level == "char" else "size_bytes"]
        loss = 8 * rows[-1]["nats"] * scored[level]["chars"] / symbols  # of 8 steps
        assert (rows[-1]["split"], rows[-1]["loss"]) == ("valid", pytest.approx(loss))
        assert rows[-1]["chars"] == pytest.approx(json.loads(done.out)["chars"])
    assert scored["char"] == scored["byte"]
    for level in scored:
        with (tmp_path / f"{level}.csv").open(newline="", encoding="utf-8") as file:
            header, *of_characters = csv.reader(file)
        assert header == ["position", "character", "nats", "bits"]
        valid = Path(text).read_text(encoding="utf-8")[18_000:19_000]
        assert [character for _, character, *_ in of_characters] == list(valid)[1:]
        assert np.mean([float(nats) for *_, nats, _ in of_characters]) == pytest.approx(mean[level], abs=1e-5)
    assert "different texts" not in cli("runs", tmp_path).err
    assert re.search(r"bits/char  \d\.\d+ bits/byte", done.err)
    assert f"bytes ({len(Path(text).read_bytes()) / 20_000:.2f} a character); " in done.err


def test_a_text_is_read_in_the_unicode_form_that_the_model_knows(cli, tiny_config, write, tmp_path):
    """In another form it would have fewer or other characters, and look better or worse."""
    text, run = words_text(20_000).replace("e", "é"), tmp_path / "run"
    cli("train", write("text.txt", text), "--config", tiny_config, "--run-dir", run)
    part = text[:500]
    other = unicodedata.normalize("NFD", part)
    files = [write("nfc.txt", part), write("nfd.txt", other)]
    first, *others = (json.loads(cli("eval", run, "--file", file, "--json").out) for file in files)
    others.append(json.loads(cli("eval", run, "--file", "-", "--json", stdin=other.encode()).out))
    reading, writing = os.pipe()
    os.write(writing, other.encode())
    os.close(writing)
    others.append(json.loads(cli("eval", run, "--file", f"/dev/fd/{reading}", "--json").out))
    os.close(reading)
    for value in others:
        assert value["nats_per_char"] == first["nats_per_char"]
        assert value["text"] | {"name": ""} == first["text"] | {"name": ""}
    for command in (["score"], ["classify", "--labels", "so,t", "--separator", " "]):
        printed = [cli(command[0], run, file, *command[1:]).out for file in files]
        assert [unicodedata.normalize("NFC", out) for out in printed] == [printed[0]] * 2
    after = [
        cli("score", run, file, "--after", unicodedata.normalize(form, part[:3])).out
        for file, form in zip(files, ("NFD", "NFC"), strict=True)
    ]
    assert after[0] == after[1] != printed[0]
    sample = ["sample", run, "--length", 400, "--seed", 1]
    drawn = [cli(*sample, "--ban", banned).out for banned in ("é", "e\u0301")]
    assert drawn[0] == drawn[1] != cli(*sample).out
    assert "é" not in drawn[0]
    assert "é" in cli(*sample, "--match", "e\u0301").out
    mixed, again = write("mixed.txt", text[:9000] + unicodedata.normalize("NFD", text[9000:])), tmp_path / "again"
    tuned = cli("train", mixed, "--config", tiny_config, "--init-from", run, "--run-dir", again)
    assert (tuned.code, "mixed.txt: read in another Unicode form" in tuned.err) == (0, True)
    assert cli("train", "--resume", "--run-dir", again, "--set", "train.max_steps=8").code == 0
    assert json.loads(cli("eval", again, "--split", "train", "--json").out)["text"]["chars"] == 17_999


def test_characters_that_share_the_rare_symbol_are_counted(cli, tiny_config, write, tmp_path):
    text, run = words_text(20_000).replace("e", "’"), tmp_path / "run"
    rare = ["--set", "data.min_count=5"]
    cli("train", write("text.txt", f"{text}ß"), "--config", tiny_config, "--run-dir", run, *rare)
    value = json.loads(cli("eval", run, "--file", write("other.txt", "so ß Z’"), "--json").out)
    assert (value["text"]["chars"], value["text"]["unknown"]) == (6, 2)
    typed = [json.loads(cli("next", run, "--prompt", prompt, "--json").out)["next"] for prompt in ("so ’", "so '")]
    assert typed[0] == typed[1]  # the plain quote is not the rare symbol


def test_what_needs_the_training_text(cli, tiny_config, text_file, tmp_path, write):
    run, file = tmp_path / "run", write("other.txt", "so\ntee\n" * 30)
    cli("train", "--config", tiny_config, "--run-dir", run, "--set", "data.split=[1, 0, 0]")
    assert cli("eval", run).error == "split valid: the run has none; allowed: train, or another text (--file FILE)"
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
    what = "4 unknown characters"
    assert skipped.err.endswith(f"skipped  {file}: {what}: 'Z' (U+005A), ',' (U+002C), 'é' (U+00E9)\n")
    of = json.loads(skipped.out)["text"]
    assert (of["name"], of["chars"], of["unknown"]) == ("other.txt", 8, 4)


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
