"""`charlm train --lines` and what the other commands do with a model of lines."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from charlm.checkpoint import read_checkpoint, save_checkpoint
from charlm.config import load_config
from charlm.inference import load
from charlm.inference.line_quantiles import PERCENTS, Limit

NAMES = ["anna", "hanna", "johanna", "ann", "joan", "nora", "jo", ""]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a few short names, many times each, which it soon knows by heart."""
    from typer.testing import CliRunner

    from charlm.cli import app

    folder = tmp_path_factory.mktemp("lines")
    text = folder / "names.txt"
    text.write_text("\n".join(NAMES * 40))
    settings = ["data.split=[0.6,0.4,0]", "model.cell.hidden=24", "train.batch_size=4", "train.bptt=16", "threads=1"]
    settings += ["train.max_steps=150", "optimizer.lr=0.02", "precision=fp32"]
    words = ["train", "--config", "lstm", str(text), "--lines", "--run-dir", str(folder / "run")]
    words += [word for setting in settings for word in ("--set", setting)]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    return folder / "run"


def test_it_is_an_option_of_the_config(run):
    assert load_config(run / "config.yaml").data.unit == "line"


def test_samples_are_lines_without_headings(cli, run):
    result = cli("sample", run, "--count", 70, "--seed", 1, "--temperature", 0.5)
    lines = result.out.split("\n")
    assert len(lines) == 71
    assert lines[-1] == ""
    assert sum(line in NAMES for line in lines[:-1]) > 50
    alone = [cli("sample", run, "--seed", seed, "--temperature", 0.5).out for seed in (1, 2, 70)]
    assert alone == [f"{lines[place]}\n" for place in (0, 1, 69)]


def test_a_prompt_begins_a_line(cli, run):
    lines = cli("sample", run, "--prompt", "jo", "--count", 5, "--seed", 1).out.split("\n")[:-1]
    assert all(line.startswith("jo") for line in lines)
    value = json.loads(cli("sample", run, "--prompt", "jo", "--count", 2, "--seed", 1, "--json").out)
    assert [one["prompt"] + one["text"] for one in value["samples"]] == lines[:2]


def test_a_prompt_has_no_line_end_but_that_of_its_file(cli, run):
    expected = cli("sample", run, "--prompt", "jo", "--seed", 1).out
    for data in (b"jo", b"jo\n", b"jo\r\n"):
        assert cli("sample", run, "--prompt-file", "-", "--seed", 1, stdin=data).out == expected
    found = cli("sample", run, "--prompt-file", "-", stdin=b"jo\n\n")
    assert found.code == 2
    assert "--prompt-file -: found a line end; allowed with a model of lines: a part of one line" in found.err


def test_unique_and_novel_drop_lines_and_say_how_many(cli, run):
    known = set(load(run).vocabulary.decode(load(run).split("train")).split("\n"))
    unique = cli("sample", run, "--count", 4, "--seed", 1, "--unique")
    lines = unique.out.split("\n")[:-1]
    assert len(set(lines)) == len(lines) == 4
    assert unique.err.startswith("dropped  0 lines of the training text, ")
    novel = cli("sample", run, "--count", 3, "--seed", 1, "--novel", "--temperature", 1.5)
    assert not set(novel.out.split("\n")[:-1]) & known
    assert ", 0 repeats" in novel.err
    none = cli("sample", run, "--count", 2, "--seed", 1, "--novel", "--temperature", 0)
    assert (none.code, none.out) == (0, "")
    assert none.err == "dropped  40 lines of the training text, 0 repeats; gave up with 0 of 2\n"


@pytest.mark.parametrize("option", ["--unique", "--novel"])
def test_other_models_have_no_lines_to_drop(cli, trained_run, option):
    result = cli("sample", trained_run, option)
    assert result.code == 2
    assert "--unique and --novel need a model of lines" in result.err


def test_eval_scores_every_character_of_a_file_line_by_line(cli, run, tmp_path):
    (tmp_path / "a.txt").write_text("anna\njo")
    model = load(run)
    whole = json.loads(cli("eval", run, "--file", tmp_path / "a.txt", "--json").out)
    bits = model.score(["anna", "jo"], per_char=True)
    assert [len(each) for each in bits] == [5, 3]
    assert whole["targets"] == 8
    assert whole["bits_per_char"] == pytest.approx(sum(each.sum() for each in bits) / 8, rel=1e-5)
    assert model.evaluate("anna\njo").bits_per_char == pytest.approx(whole["bits_per_char"], rel=1e-6)


def test_next_is_what_follows_within_a_line(run):
    model = load(run)
    [(first, _), *_] = model.next("hann")
    assert first == "a"
    assert model.next("jo\nhann") == model.next("hann")
    assert model.features(["anna", "jo"]).shape == (2, 24)
    bits = -math.log2(dict(model.next("", k=20))["a"])
    assert model.score(["a"], per_char=True)[0][0] == pytest.approx(bits, rel=1e-4)


def test_the_choice_of_settings_takes_lines_too(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("charlm.choice.speed.measure", lambda config, *_: 1e-8 * config.model.cell.hidden**2)
    (tmp_path / "names.txt").write_text("\n".join(NAMES * 40))
    suggested = cli("config", "suggest", tmp_path / "names.txt", "--lines", "--minutes", 0.01)
    assert "  unit: line" in suggested.out
    assert "reset_state: 0.01" not in suggested.out
    result = cli("train", tmp_path / "names.txt", "--lines", "--minutes", 0.01, "--run-dir", tmp_path / "run")
    assert (result.code, result.out.count("\n")) == (0, 10)


def test_training_and_eval_say_nats_per_line(cli, run, tmp_path):
    model = load(run)
    value = json.loads(cli("eval", run, "--json").out)
    lines = model.vocabulary.decode(model.split("valid")).split("\n")[1:-1]
    per_line = sum(bits.sum() for bits in model.score(lines, per_char=True)) * math.log(2) / len(lines)
    assert value["lines"] == len(lines)
    assert value["nats_per_line"] == pytest.approx(per_line, rel=1e-5)
    words = ["train", "--config", run / "config.yaml", "--set", "train.max_steps=3", "--run-dir", tmp_path / "run"]
    result = cli(*words, "--json")
    outcome = json.loads(result.out)
    ratio = value["targets"] / len(lines)
    assert outcome["best_nats_per_line"] == pytest.approx(outcome["best_nats"] * ratio)
    assert f"bits/char  {outcome['best_nats_per_line']:.2f} nats/line  " in result.err
    assert f" per character, {outcome['best_nats_per_line']:.2f} nats per line, at step 3\n" in result.err


def test_the_checkpoint_holds_the_percentiles_of_the_validation_lines(run):
    model = load(run)
    lines = model.vocabulary.decode(model.split("valid")).split("\n")[1:-1]
    quantiles = np.quantile(model.score(lines), PERCENTS / 100) * math.log(2)
    np.testing.assert_allclose(model.progress["line_quantiles"], quantiles, rtol=1e-3)
    assert Limit.parse("p50").nats(model, "--above") == pytest.approx(quantiles[59], rel=1e-3)


def test_a_whole_text_with_cr_lf_scores_as_in_training(cli, run, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"anna\r\njo\r\n")
    expected = cli("score", run, "-", stdin=b"anna\njo\n")
    assert expected.code == 0
    assert cli("score", run, "-", stdin=b"anna\r\njo").out == expected.out
    assert cli("score", run, tmp_path / "a.txt").out.split("\t")[:2] == expected.out.split("\t")[:2]


def test_a_run_of_an_older_version_keeps_its_split(cli, tmp_path):
    """Frequent lines were in one split; `--resume` and `eval` must not move lines from training into validation."""
    text = tmp_path / "titles.txt"
    text.write_text("\n\n".join(f"title {n * 7919 % 1009}" for n in range(400)))
    settings = ["data.split=[0.6,0.4,0]", "model.cell.hidden=8", "train.batch_size=4", "train.bptt=8"]
    words = [word for setting in [*settings, "train.max_steps=2", "threads=1"] for word in ("--set", setting)]
    trained = cli("train", "--config", "lstm", text, "--lines", "--run-dir", tmp_path / "run", *words)
    assert "lines    " in trained.err
    new = json.loads(cli("eval", tmp_path / "run", "--json").out)["lines"]
    assert new == pytest.approx(0.4 * 799, rel=0.1)
    for file in (tmp_path / "run/checkpoints").iterdir():
        checkpoint = read_checkpoint(file)
        older = {key: value for key, value in checkpoint.progress.items() if key != "spread"}
        save_checkpoint(replace(checkpoint, progress=older), file)
    old = json.loads(cli("eval", tmp_path / "run", "--json").out)["lines"]
    assert abs(old - new) > 100
    resumed = cli("train", "--resume", "--run-dir", tmp_path / "run", "--set", "train.max_steps=4")
    assert resumed.code == 0, resumed
    assert json.loads(cli("eval", tmp_path / "run", "--json").out)["lines"] == old
