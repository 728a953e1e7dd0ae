"""The words and lines of a text that surprised a model most."""

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Stretch = tuple[int, int, float]
"""Start, length, bits."""

IDEOGRAPH = "[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]"
"""A word of its own, because there are no spaces between them."""
_LETTER = rf"(?!{IDEOGRAPH})\w"
WORD = re.compile(rf"{IDEOGRAPH}|(?:{_LETTER})+(?:['’-](?:{_LETTER})+)*")
LINE = re.compile(r"[^\n]+")
LEAST_SAVED = 0.5
"""Bits; a smaller difference between two models on a word means nothing."""
_LEAST_LINE = 10
"""Shorter lines have too few characters for a mean."""


def hardest_words(text: str, bits_N: npt.NDArray[np.float64], count: int = 20) -> list[Stretch]:
    """The words with most bits in total, the hardest first; each word once, where it was hardest."""
    return _most_per_word(text, _summed(WORD.finditer(text), bits_N), count)


def hardest_lines(text: str, bits_N: npt.NDArray[np.float64], count: int = 12) -> list[Stretch]:
    """The lines of ten characters or more with most bits per character, the hardest first."""
    lines = [
        (start, length, bits / length)
        for start, length, bits in _summed(LINE.finditer(text), bits_N)
        if length >= _LEAST_LINE
    ]
    return sorted(lines, key=lambda stretch: -stretch[2])[:count]


def better_words(
    text: str, bits_N: npt.NDArray[np.float64], other_N: npt.NDArray[np.float64], count: int = 12
) -> tuple[list[Stretch], list[Stretch]]:
    """The words where the first of two models saves most bits, and those where the second does; each `LEAST_SAVED`."""
    first, second = (
        _most_per_word(text, _summed(WORD.finditer(text), saved_N), count, LEAST_SAVED)
        for saved_N in (other_N - bits_N, bits_N - other_N)
    )
    return first, second


def _most_per_word(text: str, stretches: list[Stretch], count: int, least: float = 0.0) -> list[Stretch]:
    """The stretches with most bits, if above `least`; each word once."""
    by_text: dict[str, Stretch] = {}
    for start, length, bits in sorted(stretches, key=lambda stretch: -stretch[2]):
        if bits > least:
            by_text.setdefault(text[start : start + length], (start, length, bits))
    return list(by_text.values())[:count]


def _summed(matches: Iterable[re.Match[str]], bits_N: npt.NDArray[np.float64]) -> list[Stretch]:
    """Each stretch with its bits; those with the first character, which has none, are left out."""
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(bits_N))])
    scored = (match.span() for match in matches if not np.isnan(bits_N[match.start()]))
    return [(start, end - start, float(sums[end] - sums[start])) for start, end in scored]
