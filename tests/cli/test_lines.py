"""Commands with a model of lines or of other records, and with one of several members."""

import json

import numpy as np
import pytest

import charlm
from charlm.inference import seen
from charlm.inference.loading import load
from charlm.inference.trained import TrainedModel
from tests.browser import data_of
from tests.conftest import LEARNS_SOON, train
from tests.runs import rows
from tests.text import words_text

LINES = ["anna", "hanna", "johanna", "ann", "joan", "nora", "jo", ""]


@pytest.fixture(scope="module")
def lines_run(tmp_path_factory, compiled):
    """A run on LINES, many times each, which it soon knows by heart."""
    settings = [*LEARNS_SOON, r'data.records="\n"', "data.split=[0.6,0.4,0]", "train.max_steps=150"]
    return train(tmp_path_factory.mktemp("lines"), "\n".join(LINES * 40), *settings)


@pytest.fixture(scope="module")
def model(lines_run) -> TrainedModel:
    return load(lines_run)


def test_samples_are_lines_without_headings(cli, lines_run):
    words = ["sample", lines_run, "--temperature", 0.5]
    lines = cli(*words, "--seed", 1, "--count", 70).out.splitlines()
    assert (len(lines), cli(*words, "--seed", 70).out) == (70, f"{lines[69]}\n")
    assert sum(line in LINES for line in lines) > 50


def test_new_lines_are_neither_repeats_nor_in_the_training_text(cli, lines_run, model):
    words = ["sample", lines_run, "--seed", 1, "--new"]
    new = cli(*words, "--count", 3, "--temperature", 3)
    lines = new.out.split("\n")[:-1]
    assert len(set(lines)) == len(lines) == 3
    assert not {*lines} & {*model.split("train").text.split("\n")[1:-1]}
    none = cli(*words, "--count", 2, "--temperature", 0)
    assert (none.code, none.out) == (3, "")
    assert none.err == "drawn    40 samples for 0 of 2\n"


def test_many_prompts_read_the_training_text_once(cli, lines_run, monkeypatch):
    calls = []
    seen_records = seen.seen_records
    monkeypatch.setattr(seen, "seen_records", lambda *words: calls.append(words) or seen_records(*words))
    words = ["sample", lines_run, "--seed", 1, "--new", "--temperature", 3]
    done = cli(*words, "--prompts", "-", stdin=b"jo\nn\njo\n")
    assert len(calls) == 1
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert [row["prompt"] for row in rows] == ["jo", "n", "jo"]
    for row in rows:
        assert cli(*words, "--prompt", row["prompt"]).out == f"{row['prompt']}{row['text']}\n"


def test_a_text_is_scored_line_by_line_whatever_ends_its_lines(cli, lines_run, model):
    bits = np.concatenate(model.char_surprise(["anna", "jo"]))
    for data in (b"anna\njo", b"anna\r\njo\r\n"):
        value = json.loads(cli("eval", lines_run, "--file", "-", "--json", stdin=data).out)
        assert (value["text"]["chars"], value["bits_per_char"]) == (8, pytest.approx(bits.mean(), rel=1e-5))
    assert cli("eval", lines_run, "--dynamic").error.startswith("dynamic evaluation: found a model of records")


@pytest.mark.usefixtures("quick")
def test_the_choice_of_settings_takes_lines_too_and_fine_tuning_keeps_them(cli, tmp_path, write):
    words = [write("names.txt", "\n".join(LINES * 40)), "--minutes", 0.01]
    assert r'  records: "\n"' in cli("config", "suggest", *words, "--lines").out
    result = cli("train", *words, "--lines", "--run-dir", tmp_path / "run")
    assert (result.code, result.out.count("\n")) == (0, 10)
    value = json.loads(cli("eval", tmp_path / "run", "--json").out)
    assert value["nats_per_record"] == pytest.approx(value["nats_per_char"] * value["text"]["chars"] / value["records"])
    assert f" per character, {value['nats_per_record']:.2f} nats per record, at update " in result.err
    cli("train", *words, "--init-from", tmp_path / "run", "--run-dir", tmp_path / "again")
    assert load(tmp_path / "again").network.reads_records


def test_members_answer_together_or_the_first_of_them_says_so(cli, kernels, tmp_path):
    members_run = train(tmp_path, words_text(20_000), "model.members=2", "model.layers=2")
    value = json.loads(cli("eval", members_run, "--dynamic", "--json").out)
    lowest = min(row["nats"] for row in rows(members_run) if row["split"] == "valid")
    assert value["nats_per_char"] == pytest.approx(lowest, rel=1e-6)
    assert value["dynamic"]["nats_per_char"] < lowest
    assert "  lstm, 2 × 16 units, 2 members  " in cli("runs", members_run).out
    line = "the first of 2 members; together they score better; model.members=1 trains one alone\n"
    assert f"look     {line}" in cli("look", members_run, "--out", tmp_path / "look.html", "--length", 300).err
    assert f"export   {line}" in cli("export", members_run, "--to", "html", "--out", tmp_path / "model.html").err
    resumed = cli("train", "--resume", "--run-dir", members_run, "--set", "model.members=1")
    assert resumed.error.startswith("model.members: found 1, the run has 2; ")


SEPARATOR = "\n~~~\n"
RECORDS = ["\n".join([f"{n} eggs", "flour salt", "milk"][: 1 + n % 3]) for n in range(400)]


def test_each_record_is_written_scored_and_classified_by_itself(cli, tiny_config, tmp_path):
    text, run = tmp_path / "recipes.txt", tmp_path / "run"
    text.write_text(SEPARATOR.join(RECORDS) + "\n")
    done = cli("train", text, "--records", r"\n~~~\n", "--config", tiny_config, "--run-dir", run)
    assert "in 400 records" in done.err
    written = cli("sample", run, "--count", 3, "--seed", 1, "--length", 40)
    assert written.out.count(SEPARATOR) == 3
    sample = json.loads(cli("sample", run, "--json", "--seed", 1, "--length", 5000).out)["samples"][0]
    assert sample["ended_by"] == "record"
    assert "~" not in sample["text"]
    scored = cli("score", run, "-", stdin=SEPARATOR.join(RECORDS[:5]).encode()).out.splitlines()
    assert [row.split("\t")[3] for row in scored] == [record.replace("\n", r"\n") for record in RECORDS[:5]]
    evaluated = json.loads(cli("eval", run, "--file", text, "--json").out)
    assert evaluated["records"] == 400
    chars = evaluated["text"]["chars"]
    assert chars == sum(len(record) + 1 for record in RECORDS)
    classified = cli("classify", run, "-", "--labels", "1,2", "--separator", " ", stdin=b"egg\nmilk\n~~~\nsalt")
    assert [row.split("\t")[2] for row in classified.out.splitlines()] == [r"egg\nmilk", "salt"]
    assert cli("sample", run, "--prompt", "egg\nsalt", "--length", 3, "--seed", 1).out.startswith("egg\nsalt")
    assert "the end of a record" in cli("sample", run, "--prompt", f"egg{SEPARATOR}").usage_error
    assert "400 records" in cli("data", "info", text, "--records", r"\n~~~\n").out
    looked = cli("look", run, "--file", text, "--length", 60, "--out", tmp_path / "look.html")
    page = data_of((tmp_path / "look.html").read_text(encoding="utf-8"))
    shown = "".join(f"{record}\x1e" for record in RECORDS[:4])
    assert page["text"] == shown
    assert page["copied"] == [[0, len(shown)]]
    assert f"text     {len(shown)} of {chars:,} characters of recipes.txt; " in looked.err
    model = charlm.load(run)
    assert model.evaluate(text.read_text()).of.chars == chars


def test_a_separator_that_is_nowhere_or_empty_is_refused(cli, text_file):
    assert "found no 'ZZ'; allowed: two records or more" in cli("train", text_file, "--records", "ZZ").error
    assert "--records: found an empty text" in cli("train", text_file, "--records", "").usage_error
