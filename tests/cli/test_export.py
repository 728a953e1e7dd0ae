"""`charlm export`: where it writes, and what it says."""

import re
from pathlib import Path

import pytest

from charlm.cli.export import Format
from charlm.export import FORMATS


def names_in(folder):
    return sorted(file.name for file in Path(folder).iterdir())


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_says_what_it_has_written(cli, trained_run, place):
    result = cli("export", trained_run, "--to", "torch", "--out", "mine")
    assert (result.code, result.out) == (0, "")
    assert re.fullmatch(r"export   mine: [\d.]+ kB; logits differ by \d\.\de-0\d at most\n", result.err)
    assert names_in("mine") == ["char_model.py", "vocabulary.json", "weights.safetensors"]
    assert names_in(place) == ["mine"]


def test_nothing_is_replaced_without_being_asked_to(cli, trained_run, place):
    words = ["export", trained_run, "--to", "torch", "--out", "mine"]
    Path("mine").mkdir()
    assert cli(*words).error == "--out mine: exists already; --overwrite replaces an earlier export"
    assert cli(*words, "--overwrite").code == 0
    Path("mine/char_model.py").write_text("old")
    assert cli(*words, "--overwrite").code == 0
    assert Path("mine/char_model.py").read_text() != "old"
    Path("mine").rename("elsewhere")
    Path("mine").symlink_to("elsewhere")
    Path("elsewhere/char_model.py").write_text("old")
    assert cli(*words, "--overwrite").code == 0
    assert Path("elsewhere/char_model.py").read_text() == "old"
    assert not Path("mine").is_symlink()
    assert names_in(place) == ["elsewhere", "mine"]


def test_a_folder_of_something_else_is_kept(cli, trained_run, place):
    Path("mine").mkdir()
    Path("mine/thesis.tex").write_text("years of work")
    words = ["export", trained_run, "--to", "torch", "--out", "mine", "--overwrite"]
    assert cli(*words).error == ("--out mine: holds thesis.tex, so it is not an earlier export; name another folder")
    words[5] = "mine/thesis.tex"
    assert cli(*words).error == (
        "--out mine/thesis.tex: exists and is not an export for PyTorch; allowed: a new or empty folder, or an earlier "
        "export for PyTorch"
    )
    assert names_in("mine") == ["thesis.tex"]
    Path("other").mkdir()
    Path("other/vocabulary.json").write_text("[]")
    words[5] = "other"
    assert (
        cli(*words).error == "--out other: holds vocabulary.json, so it is not an earlier export; name another folder"
    )
    assert Path("mine/thesis.tex").read_text() == "years of work"


def test_a_file_of_something_else_is_kept(cli, trained_run, place, monkeypatch):
    pytest.importorskip("onnxruntime")
    words = ["export", trained_run, "--to", "onnx", "--out", "mine", "--overwrite"]
    Path("mine").write_text("years of work")
    with monkeypatch.context() as patch:  # refused before anything is computed
        patch.setitem(FORMATS, "onnx", None)
        assert cli(*words).error == (
            "--out mine: exists and is not an export for ONNX; allowed: a new or empty file, or an earlier export for "
            "ONNX"
        )
    assert Path("mine").read_text() == "years of work"
    Path("mine").write_text("")
    assert [cli(*words).code for _ in range(2)] == [0, 0]
    assert names_in(place) == ["mine"]


def test_the_formats_of_the_command_are_those_that_there_are():
    assert [*Format] == [*FORMATS]
