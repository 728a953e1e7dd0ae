"""Texts of records: the same separator from reading to sampling."""

import json
import random

import pytest

SEPARATOR = "\n~~~\n"


@pytest.fixture(scope="module")
def records():
    """400 recipes of one to three lines."""
    draw = random.Random(1)
    words = ["salt", "egg", "flour", "milk"]
    lines = [" ".join(draw.choices(words, k=3)) for _ in range(1200)]
    return ["\n".join(lines[3 * n : 3 * n + draw.randint(1, 3)]) for n in range(400)]


@pytest.fixture
def run(cli, records, tmp_path, monkeypatch):
    """A run on them, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes.txt").write_text(SEPARATOR.join(records) + "\n")
    options = ["--set", "train.max_steps=30", "--set", "model.cell.hidden=24", "--set", "train.batch_size=8"]
    done = cli("train", "recipes.txt", "--records", r"\n~~~\n", "--run-dir", "run", "--minutes", "1", *options)
    assert (done.code, "in 400 records" in done.err) == (0, True), done.err
    return "run"


def test_each_record_is_written_scored_and_classified_by_itself(cli, run, records):
    written = cli("sample", run, "--count", 3, "--seed", 1, "--length", 40)
    assert written.out.count(SEPARATOR) == 3
    sample = json.loads(cli("sample", run, "--json", "--seed", 1, "--length", 5000).out)["samples"][0]
    assert sample["ended_by"] == "record"
    assert "~" not in sample["text"]
    scored = cli("score", run, "-", stdin=SEPARATOR.join(records[:5]).encode()).out.splitlines()
    assert [row.split("\t")[3] for row in scored] == [record.replace("\n", r"\n") for record in records[:5]]
    evaluated = json.loads(cli("eval", run, "--file", "recipes.txt", "--json").out)
    assert evaluated["records"] == 400
    assert evaluated["targets"] == sum(len(record) + 1 for record in records)
    classified = cli("classify", run, "-", "--labels", "salt,milk", "--separator", " ", stdin=b"egg\nmilk\n~~~\nsalt")
    assert [row.split("\t")[2] for row in classified.out.splitlines()] == [r"egg\nmilk", "salt"]


def test_a_prompt_is_the_beginning_of_one_record(cli, run):
    assert cli("sample", run, "--prompt", "egg\nsalt", "--length", 3, "--seed", 1).out.startswith("egg\nsalt")
    assert "the end of a record" in cli("sample", run, "--prompt", f"egg{SEPARATOR}").usage_error


def test_a_text_with_the_mark_of_records_is_refused(cli, tmp_path, write):
    text = write("a.txt", f"a{SEPARATOR}b\x1ec" * 100)
    assert "0x1E" in cli("data", "info", text, "--records", SEPARATOR).error
    assert cli("data", "info", text).code == 0
    both = cli("data", "info", text, "--records", SEPARATOR, "--lines")
    assert both.usage_error.endswith("--lines and --records exclude one another")
