"""`charlm export`: where it writes, and what it says."""

import re
from pathlib import Path

import pytest

from charlm.export import FORMATS


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_says_what_it_has_written(cli, trained_run, place):
    pytest.importorskip("onnxruntime")
    result = cli("export", trained_run, "--to", "onnx", "--out", "a.onnx")
    assert (result.code, result.out) == (0, "")
    assert re.fullmatch(
        r"export   writing .*\nexport   a\.onnx: [\d.]+ kB; logits differ by \d\.\de-0\d at most\n", result.err
    )
    assert [file.name for file in place.iterdir()] == ["a.onnx"]


def test_an_earlier_export_is_replaced_and_nothing_else(cli, trained_run, place, monkeypatch):
    pytest.importorskip("onnxruntime")
    words = ["export", trained_run, "--to", "onnx", "--out"]
    Path("a.onnx").touch()
    assert [cli(*words, "a.onnx").code for _ in range(2)] == [0, 0]
    Path("thesis.tex").write_text("years of work")
    with monkeypatch.context() as patch:  # refused before anything is computed
        patch.setitem(FORMATS, "onnx", None)
        assert cli(*words, "thesis.tex").error == (
            "--out thesis.tex: exists and is another file; allowed: a new or empty file, or one that charlm wrote"
        )
    assert Path("thesis.tex").read_text() == "years of work"
    assert {file.name for file in place.iterdir()} == {"a.onnx", "thesis.tex"}


def test_the_formats_of_the_command_are_those_that_there_are(cli):
    assert "|".join(FORMATS) in cli("export", "--help").out
