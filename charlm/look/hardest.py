"""The words of a text that surprised a model most."""

import re

import numpy as np
import numpy.typing as npt

IDEOGRAPH = "[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]"
"""A word of its own, because there are no spaces between them."""
_LETTER = rf"(?!{IDEOGRAPH})\w"
_WORD = re.compile(rf"{IDEOGRAPH}|(?:{_LETTER})+(?:['’-](?:{_LETTER})+)*")


def hardest_words(
    text: str, bits_N: npt.NDArray[np.float64], count: int, least: float = 0.0
) -> list[tuple[int, int, float]]:
    """Start, length and bits of the words with most bits in total, above `least`; each word once, where it is hardest.

    A word with the first character, which has no bits, is left out.
    """
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(bits_N))])
    words = []
    for word in _WORD.finditer(text):
        start, end = word.span()
        bits = float(sums[end] - sums[start])
        if bits > least and not np.isnan(bits_N[start]):
            words.append((start, end - start, bits))
    by_text: dict[str, tuple[int, int, float]] = {}
    for start, length, bits in sorted(words, key=lambda word: -word[2]):
        by_text.setdefault(text[start : start + length], (start, length, bits))
    return [*by_text.values()][:count]
