"""Text that a terminal can show without obeying it."""

import sys

import pytest

from charlm.system import console
from charlm.system.formatting import one_line, printable, wrapped
from tests.stress.fuzz import COMMANDS


def test_no_character_that_a_terminal_obeys_is_shown():
    text = "".join(map(chr, range(0x10000)))
    for shown in (printable(text), one_line(text)):
        assert not COMMANDS.search(shown)
    assert not set("\n\t") & set(one_line(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2J", r"a\x1b[2J"),
        ("\x00\x07\x08\x0b\x0c\r\x7f", r"\x00\x07\x08\x0b\x0c\x0d\x7f"),
        ("\udcff\ud800", r"\xff\ud800"),
        ("\n\té中😀 \u200d\u00a0\u3000\\x1b", "\n\té中😀 \u200d\u00a0\u3000\\x1b"),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown
    assert one_line(text) == shown.replace("\n", "\\n").replace("\t", "\\t")


@pytest.mark.parametrize(
    ("columns", "lines"),
    [(26, ["data     a text of words:", "         x"]), (1, ["data", "  a", "  text", "  of", "  words:", "  x"])],
)
def test_lines_break_between_words(columns, lines):
    assert wrapped("data     a text of words: x", columns, 9).splitlines() == lines


def test_on_a_terminal_a_message_is_wrapped_and_its_command_stays_whole(monkeypatch, capsys):
    command = "charlm train --resume --run-dir runs/a-long-name"
    console.say("stopped", "SIGINT at step 5; resume with:", command)
    assert capsys.readouterr().err == f"stopped  SIGINT at step 5; resume with: {command}\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    console.say("stopped", "SIGINT at step 5; resume with:", command)
    console.say_error("lstm.yaml: found\tno such file; allowed: a YAML file")
    assert capsys.readouterr().err.splitlines() == [
        "stopped  SIGINT at step 5; resume with:",
        f"         {command}",
        r"error: lstm.yaml: found\tno such file;",
        "       allowed: a YAML file",
    ]
