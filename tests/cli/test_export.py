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
    others = {
        "thesis.tex": ("years of work", "another file"),
        "page": ("<!DOCTYPE html>\n<!-- A model, by charlm export -->\n", "a page of charlm export"),
    }
    for name, (text, found) in others.items():
        Path(name).write_text(text)
        with monkeypatch.context() as patch:  # refused before anything is computed
            patch.setitem(FORMATS, "onnx", (None, FORMATS["onnx"][1]))
            assert cli(*words, name).error == (
                f"--out {name}: exists and is {found}; allowed: a new or empty file, or an ONNX model of charlm"
            )
        assert Path(name).read_text() == text
    assert {file.name for file in place.iterdir()} == {"a.onnx", *others}


def test_the_formats_of_the_command_are_those_that_there_are(cli):
    assert "|".join(FORMATS) in cli("export", "--help").out
