"""Texts of records: the same separator from reading to sampling."""

import json

import charlm
from tests.browser import data_of

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
    assert evaluated["targets"] == sum(len(record) + 1 for record in RECORDS)
    classified = cli("classify", run, "-", "--labels", "salt,milk", "--separator", " ", stdin=b"egg\nmilk\n~~~\nsalt")
    assert [row.split("\t")[2] for row in classified.out.splitlines()] == [r"egg\nmilk", "salt"]
    assert cli("sample", run, "--prompt", "egg\nsalt", "--length", 3, "--seed", 1).out.startswith("egg\nsalt")
    assert "the end of a record" in cli("sample", run, "--prompt", f"egg{SEPARATOR}").usage_error
    assert "400 records" in cli("data", "info", text, "--records", r"\n~~~\n").out
    looked = cli("look", run, "--file", text, "--length", 60, "--out", tmp_path / "look.html")
    page = data_of((tmp_path / "look.html").read_text(encoding="utf-8"))
    shown = "".join(f"{record}\x1e" for record in RECORDS[:4])
    assert page["text"] == shown
    assert page["copied"] == [[0, len(shown)]]
    assert f"{text}: the first {len(shown)} of {evaluated['targets']:,} characters; " in looked.err
    assert f"reading {len(shown)} characters, " in looked.err
    model = charlm.load(run)
    assert model.evaluate(text.read_text()).targets == evaluated["targets"]


def test_a_separator_that_is_nowhere_or_empty_is_refused(cli, text_file):
    assert "found no 'ZZ'; allowed: two records or more" in cli("train", text_file, "--records", "ZZ").error
    assert "--records: found an empty text" in cli("train", text_file, "--records", "").usage_error
