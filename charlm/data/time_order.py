"""Whether the lines of a text stand in order of time, as in a log: then a later line says what comes next."""

import re
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

_BEGINNING = 100
"""Characters of a line in which a time may stand: an address or a level may come before it."""
_LEAST_LINES, _LEAST_SHARE = 8, 0.1
"""How many lines need a time; others are blank, or go on with what an earlier line began."""
_MOST_FALLS = 0.1
"""Largest share of lines with an earlier time than the line before: clocks restart at midnight, and threads overlap."""
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


def are_in_order(lines: Sequence[str]) -> bool:
    """Whether times at the beginnings of nearly all these lines increase, or decrease; not if few times differ."""
    beginnings = [line[:_BEGINNING] for line in lines]
    for time in _TIMES:
        found = [match and tuple(map(int, re.findall(r"\d+", match[0]))) for match in map(time.search, beginnings)]
        if _increase(found) or _increase(found[::-1]):
            return True
    return False


def _increase(times: Sequence[tuple[int, ...] | None]) -> bool:
    """Whether the times of lines, None where a line has none, increase."""
    found = [time for time in times if time is not None]
    falls = sum(after < before for before, after in pairwise(found))
    if len(found) < max(_LEAST_LINES, _LEAST_SHARE * len(times)) or falls > _MOST_FALLS * len(found):
        return False
    middles = []
    for begin, end in pairwise(np.linspace(0, len(times), _GROUPS + 1).astype(int).tolist()):
        if group := sorted(time for time in times[begin:end] if time is not None):
            middles.append(group[len(group) // 2])
    return sum(after != before for before, after in pairwise(middles)) > _GROUPS // 2
