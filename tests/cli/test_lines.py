"""`charlm train --lines` and what the other commands do with a model of lines."""

import json
import math

import numpy as np
import pytest

from charlm.inference.trained import TrainedModel, load
from tests.cli.conftest import LINES


@pytest.fixture(scope="module")
def model(lines_run) -> TrainedModel:
    return load(lines_run)


def lines_of(model, split):
    return model.vocabulary.decode(model.split(split)).split("\n")[1:-1]


def test_samples_are_lines_without_headings(cli, lines_run, model):
    words = ["sample", lines_run, "--seed", 1]
    *lines, end = cli(*words, "--count", 70, "--temperature", 0.5).out.split("\n")
    assert (len(lines), end) == (70, "")
    assert sum(line in LINES for line in lines) > 50
    alone = [cli("sample", lines_run, "--seed", seed, "--temperature", 0.5).out for seed in (1, 2, 70)]
    assert alone == [f"{lines[place]}\n" for place in (0, 1, 69)]

    lines = cli(*words, "--prompt", "jo", "--count", 5).out.split("\n")[:-1]
    assert all(line.startswith("jo") for line in lines)
    value = json.loads(cli(*words, "--prompt", "jo", "--count", 2, "--json").out)
    assert [one["prompt"] + one["text"] for one in value["samples"]] == lines[:2]
    fault = cli(*words, "--prompt", "jo\n").usage_error
    assert "--prompt: found a line end; allowed with a model of lines: the beginning of one line" in fault

    new = cli(*words, "--count", 3, "--new", "--temperature", 3)
    lines = new.out.split("\n")[:-1]
    assert len(set(lines)) == len(lines) == 3
    assert not {*lines} & {*lines_of(model, "train")}
    assert "gave up" not in new.err
    none = cli(*words, "--count", 2, "--new", "--temperature", 0)
    assert (none.code, none.out) == (0, "")
    assert none.err == "new      gave up with 0 of 2: the other lines are repeats or in the training text\n"


def test_a_text_is_scored_line_by_line_whatever_ends_its_lines(cli, lines_run, model, write):
    bits = np.concatenate(model.char_scores(["anna", "jo"]))
    whole = json.loads(cli("eval", lines_run, "--file", write("a.txt", "anna\njo"), "--json").out)
    assert whole["targets"] == len(bits) == 8
    assert whole["bits_per_char"] == pytest.approx(bits.mean(), rel=1e-5)
    assert model.evaluate("anna\njo").bits_per_char == pytest.approx(whole["bits_per_char"], rel=1e-6)
    for data in (b"anna\njo\n", b"anna\r\njo", b"anna\r\njo\r\n"):
        other = json.loads(cli("eval", lines_run, "--file", "-", "--json", stdin=data).out)
        assert (other["targets"], other["nats_per_char"]) == (8, whole["nats_per_char"])
        rows = cli("score", lines_run, "-", "--json", stdin=data).out.splitlines()
        assert [json.loads(row)["text"] for row in rows] == ["anna", "jo"]
    fault = cli("eval", lines_run, "--dynamic").error
    assert fault == "dynamic evaluation: found a model of lines; allowed: a model of running text"

    assert model.next("jo\nhann") == model.next("hann")
    assert model.next("hann")[0][0] == "a"
    assert model.features(["anna", "jo"]).shape == (2, 24)
    bits = -math.log2(dict(model.next("", k=20))["a"])
    assert model.char_scores(["a"])[0][0] == pytest.approx(bits, rel=1e-4)


@pytest.mark.usefixtures("quick")
def test_the_choice_of_settings_takes_lines_too(cli, tmp_path, write):
    words = [write("names.txt", "\n".join(LINES * 40)), "--lines", "--minutes", 0.01]
    suggested = cli("config", "suggest", *words)
    assert "  unit: line" in suggested.out
    assert "reset_state: 0.01" not in suggested.out
    result = cli("train", *words, "--run-dir", tmp_path / "run")
    assert (result.code, result.out.count("\n")) == (0, 10)


def test_training_and_eval_say_nats_per_line(cli, lines_run, model, tmp_path):
    value = json.loads(cli("eval", lines_run, "--json").out)
    lines = lines_of(model, "valid")
    per_line = sum(bits.sum() for bits in model.char_scores(lines)) * math.log(2) / len(lines)
    assert value["lines"] == len(lines)
    assert value["nats_per_line"] == pytest.approx(per_line, rel=1e-5)
    words = ["--config", lines_run / "config.yaml", "--set", "train.max_steps=3", "--run-dir", tmp_path / "run"]
    result = cli("train", *words, "--json")
    outcome = json.loads(result.out)
    assert outcome["best_nats_per_line"] == pytest.approx(outcome["best_nats"] * value["targets"] / len(lines))
    assert f"bits/char  {outcome['best_nats_per_line']:.2f} nats/line  " in result.err
    assert f" per character, {outcome['best_nats_per_line']:.2f} nats per line, at update 3\n" in result.err
