"""What commands write where the user says: pages, and nothing of the user's is lost by them or becomes text."""

import os
import re
import shutil
import threading

import pytest

from tests.browser import data_of
from tests.text import words_text
from tests.training.conftest import full_disk

OPTION = {"eval": "--per-char", "look": "--out", "report": "--out", "export": "--out"}


def words(command, run, out):
    """A command that writes to `out`."""
    more = {"look": ["--length", 100], "export": ["--to", "html"]}.get(command, [])
    return [command, run, *more, OPTION[command], out]


@pytest.fixture
def outputs(cli, copied_run, tmp_path):
    """A file of each command, in a folder of a text."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "text.txt").write_text("so te rain\n")
    for command in OPTION:
        assert cli(*words(command, copied_run, folder / command)).code == 0
    return folder


def test_what_charlm_writes_is_no_text(cli, copied_run, outputs):
    shutil.copytree(copied_run, outputs / "runs/mine")
    for source in (outputs, f"{outputs}/**"):
        result = cli("data", "info", source, "--level", "byte")
        assert (result.code, result.out.split()[:2]) == (0, ["files", "1"])
        assert f"leaves out {outputs}/eval, {outputs}/export, {outputs}/look and 2 more: links to " in result.err


def test_commands_replace_only_what_charlm_wrote(cli, copied_run, outputs):
    (outputs / "years.html").write_text("<!DOCTYPE html>\n<title>years of work</title>")
    (outputs / "link").symlink_to("text.txt")
    (outputs / "empty").touch()
    shutil.copy(copied_run / "checkpoints/best.safetensors", outputs)
    before = {path: path.read_bytes() for path in outputs.iterdir()}
    for command in OPTION:
        for out in outputs.iterdir():
            if out.name not in (*OPTION, "empty"):
                assert cli(*words(command, copied_run, out)).error.startswith(f"{OPTION[command]} {out}: "), out
        assert cli(*words(command, copied_run, outputs / command)).code == 0
    assert cli(*words("eval", copied_run, outputs / "empty")).code == 0
    assert before.keys() == {*outputs.iterdir()}
    assert [path.name for path, data in before.items() if path.read_bytes() != data and path.name not in OPTION] == [
        "empty"
    ]


def test_a_run_may_be_new_below_its_text_but_not_hold_a_part_of_it(cli, tiny_config, tmp_path, text_file):
    folder = tmp_path / "texts"
    (folder / "part").mkdir(parents=True)
    for name in ("a.txt", "part/b.txt"):
        shutil.copy(text_file, folder / name)
    train = ["train", "--config", tiny_config, "--set", f"data.source={folder}", "--run-dir"]
    for run in (folder / "part", folder):
        assert cli(*train, run).error.startswith(f"{folder}: found files in {run}, the run's folder; ")
    assert [path.name for path in (folder / "part").glob("[!.]*")] == ["b.txt"]
    assert cli(*train, folder / "runs/new").code == 0
    again = cli("train", "--resume", "--run-dir", folder / "runs/new", "--set", "train.max_steps=7")
    assert f"{folder}: leaves out {folder}/runs/new: links to folders, or what charlm wrote\n" in again.err


def test_a_pipe_that_nobody_reads_yet_is_said(cli, trained_run, tmp_path, monkeypatch):
    pipe, said, got = tmp_path / "pipe", [], []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))

    def say(*words):
        said.append(words)
        reader.start()

    monkeypatch.setattr("charlm.data.outputs.say", say)
    assert cli(*words("eval", trained_run, pipe)).code == 0
    reader.join()
    assert said == [("wait", f"{pipe}: a pipe that nobody reads yet")]
    early = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert cli(*words("eval", trained_run, pipe)).code == 0
    assert (os.read(early, 10**6), len(said)) == (got[0], 1)
    os.close(early)


def test_a_full_disk_leaves_the_earlier_file_whole(cli, trained_run, outputs):
    out = outputs / "export"
    out.chmod(0o600)
    before, names = out.read_bytes(), {*outputs.iterdir()}
    with full_disk():
        error = cli(*words("export", trained_run, out)).error
    assert error == f"--out {out}: File too large; allowed: a file that can be written"
    assert (out.read_bytes(), {*outputs.iterdir()}) == (before, names)
    assert cli(*words("export", trained_run, out)).code == 0
    assert out.stat().st_mode & 0o777 == 0o600


def test_look_at_a_file_or_at_the_validation_text(cli, trained_run, tmp_path, write, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, valid = words_text(700), words_text(20_000)[18_000:19_000]
    result = cli("look", trained_run, "--file", write("a.txt", text), "--length", 300, "--gradients")
    lines = result.err.splitlines()
    assert "text     300 of 700 characters of a.txt; see --length" in lines
    assert re.fullmatch(r"page     look\.html, [\d.]+ kB: open it in a browser", lines[-1])
    page = (tmp_path / "look.html").read_text(encoding="utf-8")
    assert (data_of(page)["text"], '"gradients":' in page) == (text[:300], True)
    looked = cli("look", trained_run, "--length", 9000, "--compare", trained_run)
    assert " of 1,000 characters of 5% of text.txt before the last 5%; see --length\n" in looked.err
    assert "compare  Neither was trained on a stretch of 200 characters of this text\n" in looked.err
    page = (tmp_path / "look.html").read_text(encoding="utf-8")
    assert data_of(page)["text"] == valid[valid.index("\n") + 1 :]  # the split begins within a line


def test_two_models_are_compared_on_text_that_neither_was_trained_on(cli, trained_run, tiny_config, tmp_path):
    """The second run was trained on most of what the first is validated on."""
    text, other, page = words_text(20_000), tmp_path / "other", tmp_path / "look.html"
    split = ["--set", "data.split=[0.93,0.07,0]"]
    assert cli("train", "--config", tiny_config, "--run-dir", other, *split).code == 0
    looked = cli("look", trained_run, "--compare", other, "--out", page)
    assert " of 1,400 characters of last 7% of text.txt; " in looked.err
    assert "compare  Neither was trained on a stretch of 200 characters of this text\n" in looked.err
    data = data_of(page.read_text(encoding="utf-8"))
    assert data["text"] in text[18_600:]
    assert data["seen"] == "Neither was trained on a stretch of 200 characters of this text"
    (tmp_path / "seen.txt").write_text(text[18_000:18_500])
    looked = cli("look", trained_run, "--compare", other, "--out", page, "--file", tmp_path / "seen.txt")
    assert "compare  other was trained on 100% of this text, which makes it look better\n" in looked.err
    (tmp_path / "text.txt").unlink()
    looked = cli("look", trained_run, "--compare", other, "--out", page)
    assert "compare  other may have been trained on this text: " in looked.err


def test_a_report_shows_each_run_once_and_names_damage(cli, trained_run, copied_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained_run, "runs/other")
    shutil.rmtree(copied_run / "checkpoints")  # none was written yet
    (copied_run / "metrics.jsonl").write_text("x\n")
    checkpoint = trained_run / "checkpoints/best.safetensors"
    result = cli("report", trained_run, "runs", checkpoint, copied_run)
    note = f"note     {copied_run}: metrics.jsonl: 1 of 1 lines cannot be read and are left out."
    assert note in result.err.splitlines()
    assert len(data_of((tmp_path / "report.html").read_text(encoding="utf-8"))["runs"]) == 3
