"""`charlm look` and `charlm report`: what is on the page, and what the command says."""

import re
import shutil

from tests.browser import data_of
from tests.text import words_text


def text_of(page) -> str:
    """The text that a page of `charlm look` shows."""
    return data_of(page.read_text(encoding="utf-8"))["text"]


def test_look_at_a_file(cli, trained_run, tmp_path, write):
    page, text = tmp_path / "page.html", words_text(700)
    words = ["--file", write("a.txt", text), "--length", 300, "--gradients", "--out", page]
    result = cli("look", trained_run, *words)
    assert (result.code, result.out) == (0, "")
    lines = result.err.splitlines()
    assert f"text     {tmp_path / 'a.txt'}: the first 300 of 700 characters; --length takes more" in lines
    assert len(re.findall(r"^look +following gradients back ", result.err, re.MULTILINE)) == 1
    assert re.fullmatch(rf"page     {page}, [\d.]+ kB: open it in a browser", lines[-1])
    assert text_of(page) == text[:300]
    assert '"gradients":' in page.read_text(encoding="utf-8")


def test_look_takes_the_validation_text_by_default(cli, trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    looked = cli("look", trained_run, "--length", 9000, "--compare", trained_run)
    assert "text     the validation text has 1,000 characters; --length asks for 9,000\n" in looked.err
    assert cli("look", trained_run, "--length", 250).code == 0
    valid = words_text(20_000)[18_000:]
    start = valid.index("\n") + 1  # the split begins within a line
    assert text_of(tmp_path / "look.html") == valid[start : start + 250]


def test_a_report_shows_each_run_once_and_names_damage(cli, trained_run, copied_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained_run, "runs/other")
    (copied_run / "metrics.jsonl").write_text("x\n")
    checkpoint = trained_run / "checkpoints/best.safetensors"
    result = cli("report", trained_run, "runs", checkpoint, copied_run)
    assert (result.code, result.out) == (0, "")
    note, page = result.err.splitlines()
    assert note == f"note     {copied_run}: metrics.jsonl: 1 of 1 lines cannot be read and are left out."
    assert re.fullmatch(r"page     report\.html, [\d.]+ kB: open it in a browser", page)
    assert len(data_of((tmp_path / "report.html").read_text(encoding="utf-8"))["runs"]) == 3
