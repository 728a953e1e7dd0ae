"""Simple features of a text, and the units whose activation goes with one of them.

A unit tracks the feature with which it correlates most, in absolute value, over the first half of the text. The
correlation that is reported is that over the second half, so it is not the best of many by chance.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from charlm.look.hardest import IDEOGRAPH
from charlm.look.predictions import Floats, Series

Values = npt.NDArray[np.float64]

_ENDS = ".!?。！？…؟۔।"
"""Ends of sentences."""
_OPENING = {"(": ")", "[": "]", "{": "}"}
_QUOTES = {'"': '"', "“": "”", "„": "“", "«": "»"}


def features_of(text: str) -> dict[str, Values]:
    """Feature → its value at every character of the text, [N]. The value is that after reading the character."""
    in_word_N = _word_positions(text)
    features = {
        "upper case": _each(text, str.isupper),
        "digit": _each(text, str.isdigit),
        "space": _each(text, lambda c: c in " \t"),
        "line end": _each(text, lambda c: c == "\n"),
        "punctuation": _each(text, lambda c: not (c.isalnum() or c.isspace())),
        "end of sentence": _each(text, lambda c: c in _ENDS),
        "vowel": _each(text, lambda c: c.lower() in "aeiouäöüàáâéèêíîóôúûаеёиоуыэюяαεηιουω"),
        "last letter of a word": _last_letters(in_word_N),
        "last character of a line": _last(_each(text, lambda c: c != "\n")),
        "position in the line": _since(text, lambda c: c == "\n"),
        "position in the word": in_word_N,
        "position in the sentence": _since(text, lambda c: c in _ENDS),
        "inside quotes": np.minimum(_quote_depths(text), 1),
        "depth of brackets": _bracket_depths(text),
        "depth of indentation": _indentations(text),
        "after a colon in the line": _after(text, ":"),
        "after # in the line": _after(text, "#"),
    }
    return {name: values for name, values in features.items() if values.min(initial=0) != values.max(initial=0)}


def _each(text: str, test: Callable[[str], bool]) -> Values:
    by_character = {character: float(test(character)) for character in set(text)}
    return np.array([by_character[character] for character in text], np.float64)


def _last(inside_N: Values) -> Values:
    """1 where a stretch of ones ends; unknown, so 0, at the end of the text."""
    ends_N = np.zeros_like(inside_N)
    ends_N[:-1] = inside_N[:-1] * (1 - inside_N[1:])
    return ends_N


def _since(text: str, test: Callable[[str], bool]) -> Values:
    """Number of characters since the last that passes the test, 0 for that one."""
    places_N = np.arange(1, len(text) + 1)
    return (places_N - np.maximum.accumulate(places_N * _each(text, test))).astype(np.float64)


def _word_positions(text: str) -> Values:
    """1 for the first letter of a word, 0 between words. An ideograph is a word."""
    alone = re.compile(IDEOGRAPH)
    positions, position, starts = [], 0, True
    for character in text:
        ideograph = alone.match(character) is not None
        position = 0 if not character.isalpha() else 1 if starts or ideograph else position + 1
        starts = ideograph
        positions.append(float(position))
    return np.array(positions, np.float64)


def _last_letters(in_word_N: Values) -> Values:
    """1 for a letter before the end of its word; unknown, so 0, at the end of the text."""
    ends_N = np.zeros_like(in_word_N)
    ends_N[:-1] = (in_word_N[:-1] > 0) & (in_word_N[1:] <= 1)
    return ends_N


def _quote_depths(text: str) -> Values:
    """1 from an opening quotation mark to the one before the closing; an empty line closes it."""
    depths, closing = [], ""
    for place, character in enumerate(text):
        if closing and (character == closing or text.startswith("\n\n", place)):
            closing = ""
        elif not closing:
            closing = _QUOTES.get(character, "")
        depths.append(float(bool(closing)))
    return np.array(depths, np.float64)


def _bracket_depths(text: str) -> Values:
    depths, expected = [], []
    for character in text:
        if character in _OPENING:
            expected.append(_OPENING[character])
        elif expected and character == expected[-1]:
            expected.pop()
        depths.append(float(len(expected)))
    return np.array(depths, np.float64)


def _indentations(text: str) -> Values:
    """Spaces at the beginning of the line, a tab as four; those of the blanks read so far within them."""
    depths, depth, leading = [], 0, True
    for character in text:
        if character == "\n":
            depth, leading = 0, True
        elif leading and character in " \t":
            depth += 4 if character == "\t" else 1
        else:
            leading = False
        depths.append(float(depth))
    return np.array(depths, np.float64)


def _after(text: str, mark: str) -> Values:
    after_N, seen = [], False
    for character in text:
        seen = character != "\n" and (seen or character == mark)
        after_N.append(float(seen))
    return np.array(after_N, np.float64)


@dataclass(frozen=True)
class Tracked:
    """What a unit seems to track."""

    feature: str
    correlation: float
    """Over the second half of the text, which had no part in the choice of the feature."""


def correlations(
    stretches: Iterator[dict[Series, Floats]], features_FN: Values
) -> tuple[dict[Series, Values], dict[Series, Values]]:
    """Correlations [F, H] of every state with every feature [F, N], over the first half and over the second.

    nan where the unit or the feature does not change within the half. Sums are float64; the stretches are not kept.
    """
    middle = features_FN.shape[1] // 2
    first: dict[Series, _Sums] = {}
    second: dict[Series, _Sums] = {}
    start = 0
    for stretch in stretches:
        states = {series: values_TH for series, values_TH in stretch.items() if not series.gate}
        end = start + len(next(iter(states.values())))
        for half, begin, until in ((first, start, min(end, middle)), (second, max(start, middle), end)):
            if begin < until:
                for series, values_TH in states.items():
                    part_TH = values_TH[begin - start : until - start].astype(np.float64)
                    half.setdefault(series, _Sums()).add(features_FN[:, begin:until], part_TH)
        start = end
    return (
        {series: sums.correlations() for series, sums in first.items()},
        {series: sums.correlations() for series, sums in second.items()},
    )


class _Sums:
    """Running sums for Pearson's correlation of features [F] with units [H]."""

    def __init__(self) -> None:
        self.count = 0
        self.f_F: Values | float = 0.0
        self.ff_F: Values | float = 0.0
        self.x_H: Values | float = 0.0
        self.xx_H: Values | float = 0.0
        self.fx_FH: Values | float = 0.0

    def add(self, f_FT: Values, x_TH: Values) -> None:
        self.count += len(x_TH)
        self.f_F = self.f_F + f_FT.sum(1)
        self.ff_F = self.ff_F + (f_FT**2).sum(1)
        self.x_H = self.x_H + x_TH.sum(0)
        self.xx_H = self.xx_H + (x_TH**2).sum(0)
        self.fx_FH = self.fx_FH + f_FT @ x_TH

    def correlations(self) -> Values:
        n = self.count
        covariance_FH = self.fx_FH / n - np.multiply.outer(self.f_F, self.x_H) / n**2
        f_F, x_H = self.ff_F / n - (self.f_F / n) ** 2, self.xx_H / n - (self.x_H / n) ** 2
        scale_FH = np.sqrt(np.multiply.outer(np.where(f_F > _LEAST, f_F, np.nan), np.where(x_H > _LEAST, x_H, np.nan)))
        return covariance_FH / scale_FH


_LEAST = 1e-12
"""A variance below this is rounding: the value does not change."""


def tracked(
    first: dict[Series, Values], second: dict[Series, Values], names: list[str]
) -> dict[tuple[Series, int], Tracked]:
    """What each unit tracks; units that change with no feature are left out."""
    units_tracked = {}
    for series, chosen_FH in first.items():
        for unit in range(chosen_FH.shape[1]):
            strength_F = np.abs(chosen_FH[:, unit])
            if np.isnan(strength_F).all() or series not in second:
                continue
            best = int(np.nanargmax(strength_F))
            reported = float(second[series][best, unit])
            if not np.isnan(reported):
                units_tracked[series, unit] = Tracked(names[best], reported)
    return units_tracked


def most_telling(units_tracked: dict[tuple[Series, int], Tracked], count: int) -> list[tuple[Series, int]]:
    """The units to show, each by the state that tells most: by turns the best for each feature.

    So one feature does not take all places.
    """
    by_feature: dict[str, list[tuple[Series, int]]] = {}
    best: dict[tuple[int, int], tuple[Series, int]] = {}
    for series, unit in sorted(units_tracked, key=lambda unit: -abs(units_tracked[unit].correlation)):
        best.setdefault((series.layer, unit), (series, unit))
    ranked = list(best.values())
    for unit in ranked:
        by_feature.setdefault(units_tracked[unit].feature, []).append(unit)
    turn = {unit: place for units in by_feature.values() for place, unit in enumerate(units)}
    chosen = sorted(ranked, key=lambda unit: turn[unit])[:count]
    return sorted(chosen, key=lambda unit: -abs(units_tracked[unit].correlation))
