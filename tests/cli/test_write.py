"""`charlm write`, with the keys from a pipe and no terminal."""

import errno
import os
import signal
import sys

import pytest

pytest.importorskip("prompt_toolkit")

from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from charlm.cli import editor as editors
from charlm.cli.editor import Editor
from charlm.inference.continuing import Offer

TAB, RIGHT, END, LEFT, UP, DOWN, BACK = "\t", "\x1b[C", "\x1b[F", "\x1b[D", "\x1b[A", "\x1b[B", "\x7f"
ALT_UP, ALT_DOWN, CTRL_C, CTRL_D, CTRL_S = "\x1b[1;3A", "\x1b[1;3B", "\x03", "\x04", "\x13"
PASTE = "\x1b[200~{}\x1b[201~"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(editors, "_DEBOUNCE_S", 0.0)


def continuations(text):
    return [" one two", " three four", "!"]


def written(*keys, draw=continuations, note=lambda text: ""):
    """The editor after these keys: the next ones are sent when the continuations of the text so far are there."""
    left = iter(keys)
    with create_pipe_input() as pipe:

        class Steps(Offer):
            def drawn(self, text, options):
                super().drawn(text, options)
                pipe.send_text(next(left, CTRL_S))

        editor = Editor(draw, note, Steps())
        editor.run(pipe, DummyOutput())
    return editor


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ((), ""), (("a",), "a"), (("a", "b"), "ab"), (("a", TAB), "a one"), (("a", TAB + TAB), "a one two"),
        (("a", RIGHT), "a one two"), (("a", END), "a one two"), (("a", "\x1bf"), "a one"),
        (("a", "\x1b[1;5C"), "a one"), (("a", ALT_DOWN + TAB), "a three"), (("a", ALT_DOWN * 2 + TAB), "a!"),
        (("a", ALT_UP + TAB), "a!"), (("a", DOWN + DOWN + UP + TAB), "a three"),
        (("a", LEFT + TAB + RIGHT + "b"), "ab"),
        (("a", LEFT + END + "b"), "ab"), (("a", BACK + "b" + RIGHT), "b"), (("a\rb", UP + "c"), "ac\nb"),
        (("a", "\rb"), "a\nb"), ((PASTE.format("é\r\n\tü"), TAB), "é\n\tü one"), (("a", CTRL_D + "b"), "a"),
        (("a" + TAB + "b",), "ab"),
    ],
)  # fmt: skip
def test_keys(keys, text):
    editor = written(*keys)
    assert (editor.buffer.text, editor.exit_code) == (text, 0)


def test_ctrl_c_and_signals_keep_the_text():
    editor = written("a", CTRL_C)
    assert (editor.buffer.text, editor.exit_code) == ("a", 130)
    editor = written("a", "b", draw=lambda text: (text == "ab" and os.kill(os.getpid(), signal.SIGTERM)) or [])
    assert (editor.buffer.text, editor.exit_code) == ("ab", 143)


def test_a_line_end_is_shown_as_a_sign_and_the_status_says_what_is_shown_and_skipped():
    editor = written("a", RIGHT, draw=lambda text: ["\nb c"] if text == "a" else [])
    assert editor.buffer.text == "a\nb c"
    editor = written("a", draw=lambda text: ["\nb c"])
    assert editor.buffer.suggestion.text == "↵b c"
    editor = written("é", note=lambda text: "the model skips 'é'" if text else "")
    assert editor._status().endswith("Ctrl-S: end  1/3  the model skips 'é'")
    assert editor.buffer.suggestion.text == " one two"
    editor.buffer.insert_text("a")
    assert editor._status().endswith("Ctrl-S: end")
    assert editor.buffer.suggestion is None


@pytest.fixture
def typing(cli, trained_run, monkeypatch):
    """Runs `charlm write` with these keys."""
    run, drawn = Editor.run, Offer.drawn

    def typing(*words, keys=("so", CTRL_S)):
        left = iter(keys)

        def from_keys(self):
            with create_pipe_input() as pipe:
                monkeypatch.setattr(Offer, "drawn", lambda *words: (drawn(*words), pipe.send_text(next(left, CTRL_S))))
                return run(self, pipe, DummyOutput())

        monkeypatch.setattr("charlm.cli.write._check_terminal", lambda: None)
        monkeypatch.setattr(Editor, "run", from_keys)
        return cli("write", trained_run, *words)

    return typing


def test_the_text_goes_to_stdout_or_to_a_file(typing, tmp_path):
    result = typing()
    assert (result.code, result.out, result.err) == (0, "so\n", "")
    result = typing("--temperature", 2, "--length", 5, keys=("so", RIGHT + CTRL_S))
    assert (result.code, result.out[:2], 2 < len(result.out) <= 8) == (0, "so", True)
    assert "the model knows no labels" in typing("--label", "x").error
    out = tmp_path / "a.txt"
    assert (typing("--out", out, keys=(CTRL_D,)).out, out.exists()) == ("", False)
    result = typing("--out", out, keys=("soé\r",))
    assert (result.code, result.out, result.err) == (0, "", f"written  {out}\n")
    assert out.read_text(encoding="utf-8") == "soé\n"
    assert typing("--out", out).error == f"--out {out}: exists already; allowed: a new file"
    fault = typing("--out", tmp_path / "none/a.txt").error
    assert fault == f"--out {tmp_path}/none/a.txt: No such file or directory; allowed: a file that can be written"
    assert typing("--out", tmp_path / "b.txt", keys=("so", CTRL_C)).code == 130
    assert (tmp_path / "b.txt").read_text() == "so\n"


def test_a_file_that_cannot_be_written_loses_nothing(typing, tmp_path, monkeypatch):
    out = tmp_path / "a.txt"

    def keys():
        yield "so"
        out.write_text("theirs")

    result = typing("--out", out, keys=keys())
    assert (result.code, result.out, out.read_text()) == (1, "so\n", "theirs")
    assert result.err == f"error: --out {out}: exists already; the text is on stdout\n"

    def keys_and_a_folder_that_is_gone():
        yield "so"
        (tmp_path / "there").rmdir()

    (tmp_path / "there").mkdir()
    result = typing("--out", tmp_path / "there/b.txt", keys=keys_and_a_folder_that_is_gone())
    assert (result.code, result.out) == (1, "so\n")
    assert result.err.endswith("there/b.txt: No such file or directory; the text is on stdout\n")

    def gone(_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("charlm.cli._terminal_is_gone", lambda: True)
    monkeypatch.setattr(sys.stdout, "write", gone)
    result = typing()
    assert (result.code, result.out) == (129, "")
    assert result.err == "lost     stdout: Input/output error; the text is lost; --out FILE keeps it next time\n"


def test_without_the_package(cli, trained_run, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("prompt_toolkit", "charlm.cli.editor"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    fault = cli("write", trained_run).error
    assert fault == "write: prompt_toolkit is not installed; pip install prompt_toolkit"
