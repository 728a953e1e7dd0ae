"""Text that a terminal can show without obeying it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.system.formatting import one_line, printable
from tests.stress.fuzz import COMMANDS


@settings(derandomize=True)
@given(st.text())
def test_printable_leaves_nothing_that_a_terminal_obeys(text):
    for shown in (printable(text), one_line(text)):
        assert not COMMANDS.search(shown)
    assert not set("\n\t") & set(one_line(text))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[2J", r"a\x1b[2J"),
        ("\x00\x07\x08\x0b\x0c\r\x7f", r"\x00\x07\x08\x0b\x0c\x0d\x7f"),
        ("\x85\x9b", r"\x85\x9b"),
        ("\u200e\u200f\u061c", r"\u200e\u200f\u061c"),
        ("\u202a\u202e\u2066\u2069", r"\u202a\u202e\u2066\u2069"),
        ("\u2028\u2029", r"\u2028\u2029"),
        ("\udcff\ud800", r"\xff\ud800"),
        ("\n\té中😀 \u200d\u00a0\u3000\\x1b", "\n\té中😀 \u200d\u00a0\u3000\\x1b"),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown
    assert one_line(text) == shown.replace("\n", "\\n").replace("\t", "\\t")
