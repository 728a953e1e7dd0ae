"""Whether the lines of a text stand in order of time or number, as in a log: then a later line says what comes next.

A line is judged by a time or a number at its beginning. Sorted lists of words or names have none.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import median_high

import numpy as np

_BEGINNING = 100
"""Characters of a line in which a time may stand: an address or a level may come before it."""
_LEAST_LINES, _LEAST_SHARE = 8, 0.1
"""How many lines need a time or number; others are blank, or go on with what an earlier line began."""
_MOST_FALLS = 0.1
"""Largest share of lines with a lower time or number than the line before: clocks restart at midnight, and threads
overlap."""
_TEXT_FALLS = 0.05
"""Share by which falls as numbers may exceed falls as text. Of a list that is sorted as text, with 10 before 9, every
eleventh number falls."""
_GROUPS = 8
"""Parts of a text whose middle lines must differ; those of a column with one frequent value are the same."""

_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DATE = (
    r"(?:19|20)\d\d[-/.]?\d\d?[-/.]?\d\d?"  # 2026-11-28, 20261128
    r"|\d\d?[-/.]\d\d?[-/.]\d{2,4}"  # 28.11.2026
    rf"|\d\d?[-/. ]{_MONTH}[-/. ]\d{{2,4}}"  # 28/Nov/2026
    rf"|{_MONTH} +\d\d?"  # Nov 28
)
_CLOCK = r"\d\d?:\d\d(?::\d\d(?:[.,]\d+)?)?"
_TIMES = [
    re.compile(rf"(?<![\w.])(?:{time})(?![\d.]*\d)", re.IGNORECASE)
    for time in (rf"(?:{_DATE})(?:[T:,\s]+{_CLOCK})?|{_CLOCK}", r"\d{6} \d{6}|\d{9,}(?:\.\d+)?")
]
"""A date or a clock; without these, seconds since 1970 and the like."""
_NUMBER = re.compile(r"(?P<before>[\W_]*(?:[^\W\d_]+[\W_]*)?)(?P<number>\d+(?:[.:/T-]\d+)*)")
"""A number behind at most one word."""


def are_in_order(lines: Sequence[str]) -> bool:
    """Whether times or numbers at the beginnings of these lines increase, or times decrease.

    Nearly every one must be as large as the one before or larger, and they must differ over the text.
    """
    beginnings = [line[:_BEGINNING] for line in lines]
    for time in _TIMES:
        times = [match and match[0] for match in map(time.search, beginnings)]
        if _increase(times) or _increase(times[::-1]):
            return True
    return _increase(_first_numbers(beginnings))


def _first_numbers(beginnings: Sequence[str]) -> list[str | None]:
    """The number at the beginning of each line that has the same word before it as most have."""
    found = [_NUMBER.match(line) for line in beginnings]
    words = [match and re.sub(r"[\W_]+", "", match["before"]) for match in found]
    counts = Counter(word for word in words if word is not None)
    usual = max(counts, key=counts.__getitem__, default=None)
    return [match["number"] if match and word == usual else None for match, word in zip(found, words, strict=True)]


def _increase(of_lines: Sequence[str | None]) -> bool:
    """Whether the times or numbers of lines, None where a line has none, increase."""
    found = [text for text in of_lines if text is not None]
    if len(found) < max(_LEAST_LINES, _LEAST_SHARE * len(of_lines)):
        return False
    keys = [_key(text) for text in found]
    falls = sum(after < before for before, after in pairwise(keys))
    as_text = sum(after < before for before, after in pairwise(found))
    if falls > _MOST_FALLS * len(keys) or falls > as_text + _TEXT_FALLS * len(keys):
        return False
    middles = []
    for begin, end in pairwise(np.linspace(0, len(of_lines), _GROUPS + 1).astype(int).tolist()):
        if own := [_key(text) for text in of_lines[begin:end] if text is not None]:
            middles.append(median_high(own))
    return sum(after != before for before, after in pairwise(middles)) > _GROUPS // 2


def _key(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))
