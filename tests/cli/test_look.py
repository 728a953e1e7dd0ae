"""`charlm look`."""

import json
import re

from tests.text import words_text


def text_of(file) -> str:
    """The text that a page shows."""
    found = re.search(r'id="data">(.*?)</script>', file.read_text(encoding="utf-8"))
    assert found
    return json.loads(found[1])["text"]


def test_a_file(cli, trained_run, tmp_path, write):
    out = tmp_path / "page.html"
    text = words_text(700)
    result = cli("look", trained_run, "--file", write("a.txt", text), "--length", 300, "--out", out)
    assert (result.code, result.out) == (0, "")
    lines = result.err.splitlines()
    assert f"text     {tmp_path / 'a.txt'}: the first 300 of 700 characters; --length takes more" in lines
    assert re.fullmatch(rf"page     {out}, [\d.]+ kB: open it in a browser", lines[-1])
    assert text_of(out) == text[:300]


def test_validation_text_and_look_html_are_the_default(cli, trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    looked = cli("look", trained_run, "--length", 9000, "--compare", trained_run)
    assert "text     the validation text has 1,000 characters; --length asks for 9,000\n" in looked.err
    assert cli("look", trained_run, "--length", 250).code == 0
    valid = words_text(20_000)[18_000:]
    start = valid.index("\n") + 1  # the split begins within a line
    assert text_of(tmp_path / "look.html") == valid[start : start + 250]


def test_stdin(cli, trained_run, tmp_path):
    out = tmp_path / "page.html"
    written = cli("sample", trained_run, "--prompt", "so ", "--length", 40, "--seed", 3).out
    assert cli("look", trained_run, "--file", "-", "--out", out, stdin=written.encode()).code == 0
    assert text_of(out) == written


def test_a_model_of_lines(cli, lines_run, tmp_path):
    run, out = lines_run, tmp_path / "page.html"
    assert cli("look", run, "--length", 200, "--out", out).code == 0
    assert text_of(out).startswith("\n")  # which is read first
    assert text_of(out).endswith("\n")  # a cut line would surprise
    assert 150 < len(text_of(out)) <= 201
    for written, length, shown in (("jo", 9, "\njo\n"), ("jo\nann\njo", 5, "\njo\n"), ("ann", 2, "\nan")):
        assert cli("look", run, "--file", "-", "--length", length, "--out", out, stdin=written.encode()).code == 0
        assert text_of(out) == shown


def test_gradients(cli, trained_run, tmp_path):
    out = tmp_path / "page.html"
    looked = cli("look", trained_run, "--length", 250, "--gradients", "--out", out)
    assert looked.code == 0
    assert len(re.findall(r"^look +following gradients back ", looked.err, re.MULTILINE)) == 1
    assert '"gradients":' in out.read_text(encoding="utf-8")
    refused = cli("look", trained_run, "--file", "-", "--gradients", "--out", out, stdin=b"so")
    assert refused.error == "gradients: found a text of 2 characters; allowed: 3 or more"
