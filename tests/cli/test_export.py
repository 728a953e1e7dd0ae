"""`charlm export`: where it writes, and what it says."""

import re
from pathlib import Path

import pytest

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
    assert re.fullmatch(
        r"export   writing .*\nexport   mine: [\d.]+ kB; logits differ by \d\.\de-0\d at most\n", result.err
    )
    assert names_in("mine") == ["char_model.py", "vocabulary.json", "weights.safetensors"]
    assert names_in(place) == ["mine"]


def test_an_earlier_export_is_replaced_if_asked_to_and_nothing_else(cli, trained_run, place, monkeypatch):
    pytest.importorskip("onnxruntime")
    words = ["export", trained_run, "--to", "torch", "--out"]
    Path("mine").mkdir()
    assert cli(*words, "mine").error == "--out mine: exists already; --overwrite replaces an earlier export"
    assert cli(*words, "mine", "--overwrite").code == 0
    Path("mine").rename("elsewhere")
    Path("mine").symlink_to("elsewhere")
    Path("elsewhere/char_model.py").write_text("old")
    assert cli(*words, "mine", "--overwrite").code == 0
    assert not Path("mine").is_symlink()
    assert Path("mine/char_model.py").read_text() != Path("elsewhere/char_model.py").read_text() == "old"
    for name in ("thesis.tex", "vocabulary.json"):
        other = Path(name[0]) / name
        other.parent.mkdir()
        other.write_text("years of work")
        assert cli(*words, name[0], "--overwrite").error == (
            f"--out {name[0]}: holds {name}, so it is not an earlier export; name another folder"
        )
        assert names_in(name[0]) == [name]
    assert cli(*words, "t/thesis.tex", "--overwrite").error == (
        "--out t/thesis.tex: exists and is not an export for PyTorch; allowed: a new or empty folder, or an earlier "
        "export for PyTorch"
    )
    words[3] = "onnx"
    with monkeypatch.context() as patch:  # refused before anything is computed
        patch.setitem(FORMATS, "onnx", None)
        assert cli(*words, "t/thesis.tex", "--overwrite").error == (
            "--out t/thesis.tex: exists and is not an export for ONNX; allowed: a new or empty file, or an earlier "
            "export for ONNX"
        )
    assert Path("t/thesis.tex").read_text() == "years of work"
    Path("a.onnx").touch()
    assert [cli(*words, "a.onnx", "--overwrite").code for _ in range(2)] == [0, 0]
    assert names_in(place) == ["a.onnx", "elsewhere", "mine", "t", "v"]


def test_the_formats_of_the_command_are_those_that_there_are(cli):
    assert "|".join(FORMATS) in cli("export", "--help").out
