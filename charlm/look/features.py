"""The words of a text that surprise most, simple features of it, and the units whose activation goes with one of them.

A unit tracks the feature with which it correlates most, in absolute value, over the first half of the text. The
correlation that is reported is that over the second half, so it is not the best of many by chance.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from charlm.data.vocabulary import Ids
from charlm.look.predictions import Floats, Series, activations
from charlm.model import CharLM

Values = npt.NDArray[np.float64]
Unit = tuple[Series, int]
"""One state of a layer, and the number of the unit."""
Tracked = tuple[str, float]
"""A feature, and the correlation over the second half of the text, which had no part in the choice of the feature."""

LEAST_CORRELATION = 0.3
"""A weaker correlation, positive or negative, is taken for noise."""
_LEAST_LENGTH = 200
"""A shorter text says nothing about what units track."""
_LEAST = 1e-12
"""A variance below this is rounding: the value does not change."""

_IDEOGRAPH = "[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]"
"""A word of its own, because there are no spaces between them."""
_LETTER = rf"(?!{_IDEOGRAPH})\w"
_SPELLED = re.compile(rf"{_IDEOGRAPH}|(?:{_LETTER})+(?:['’-](?:{_LETTER})+)*")
"""A word with the marks inside it, as in don't."""
_WORD = re.compile(rf"{_IDEOGRAPH}|(?:(?!{_IDEOGRAPH})[^\W\d_])+")
_ENDS = ".!?。！？…؟۔।"
"""Ends of sentences."""
_OPENING = {"(": ")", "[": "]", "{": "}"}
_QUOTES = {'"': '"', "“": "”", "„": "“", "«": "»"}


def features_of(text: str) -> dict[str, Values]:
    """Feature → its value at every character of the text, [N]. The value is that after reading the character."""
    since_line_end, in_word = _since(text, lambda c: c == "\n"), _word_positions(text)
    features = {
        "upper case": _each(text, str.isupper),
        "digit": _each(text, str.isdigit),
        "space": _each(text, lambda c: c in " \t"),
        "line end": _each(text, lambda c: c == "\n"),
        "punctuation": _each(text, lambda c: not (c.isalnum() or c.isspace())),
        "end of sentence": _each(text, lambda c: c in _ENDS),
        "vowel": _each(text, lambda c: c.lower() in "aeiouäöüàáâéèêíîóôúûаеёиоуыэюяαεηιουω"),
        "last letter of a word": _lasts(in_word),
        "last character of a line": _lasts(since_line_end),
        "position in the line": since_line_end,
        "position in the word": in_word,
        "position in the sentence": _since(text, lambda c: c in _ENDS),
        "inside quotes": _inside_quotes(text),
        "depth of brackets": _bracket_depths(text),
        "depth of indentation": _indentations(text),
        "after a colon in the line": (_since(text, lambda c: c == ":") < since_line_end).astype(float),
        "after # in the line": (_since(text, lambda c: c == "#") < since_line_end).astype(float),
    }
    return {name: values for name, values in features.items() if values.min(initial=0) != values.max(initial=0)}


def _each(text: str, test: Callable[[str], bool]) -> Values:
    by_character = {character: float(test(character)) for character in set(text)}
    return np.array([by_character[character] for character in text], np.float64)


def _since(text: str, test: Callable[[str], bool]) -> Values:
    """Number of characters since the last that passes the test, 0 for that one."""
    places_N = np.arange(1, len(text) + 1)
    return (places_N - np.maximum.accumulate(places_N * _each(text, test))).astype(np.float64)


def _word_positions(text: str) -> Values:
    """1 for the first letter of a word, 0 between words. An ideograph is a word."""
    positions_N = np.zeros(len(text))
    for word in _WORD.finditer(text):
        positions_N[word.start() : word.end()] = np.arange(1, len(word[0]) + 1)
    return positions_N


def _lasts(position_N: Values) -> Values:
    """1 for the last position above 0 before they begin anew; unknown, so 0, at the end of the text."""
    ends_N = np.zeros_like(position_N)
    ends_N[:-1] = (position_N[:-1] > 0) & (position_N[1:] <= 1)
    return ends_N


def _inside_quotes(text: str) -> Values:
    """1 from an opening quotation mark to the one before the closing; an empty line closes it."""
    depths, closing = [], ""
    for position, character in enumerate(text):
        if closing and (character == closing or text.startswith("\n\n", position)):
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


def tracked_units(model: CharLM, ids: Ids, text: str) -> dict[Unit, Tracked]:
    """What the units of a model track in the text of these ids; none for a text that is too short to say."""
    features = features_of(text)
    if len(text) < _LEAST_LENGTH or not features:
        return {}
    return chosen_features(*correlations(activations(model, ids), np.array([*features.values()])), [*features])


def correlations(
    stretches: Iterable[dict[Series, Floats]], features_FN: Values
) -> tuple[dict[Series, Values], dict[Series, Values]]:
    """Correlations [F, H] of every state with every feature [F, N], over the first half and over the second.

    nan where the unit or the feature does not change within the half. Sums are float64; the stretches are not stored.
    """
    middle, start = features_FN.shape[1] // 2, 0
    halves: tuple[dict[Series, Values], dict[Series, Values]] = ({}, {})
    for stretch in stretches:
        length = len(next(iter(stretch.values())))
        cut = min(max(middle - start, 0), length)
        for sums, part in zip(halves, (slice(cut), slice(cut, None)), strict=True):
            f_FT = features_FN[:, start : start + length][:, part]
            for series, values_TH in stretch.items():
                if not series.gate:
                    sums[series] = sums.get(series, 0) + _moments(f_FT, values_TH[part].astype(np.float64))
        start += length
    first, second = ({series: _pearson(sums_FH) for series, sums_FH in half.items()} for half in halves)
    return first, second


def _moments(f_FT: Values, x_TH: Values) -> Values:
    """Sums over time of the products of 1, f, f² [1 + 2F] with 1, x, x² [1 + 2H]."""
    ones = np.ones((len(x_TH), 1))
    return np.concatenate([ones.T, f_FT, f_FT**2]) @ np.concatenate([ones, x_TH, x_TH**2], axis=1)


def _pearson(moments: Values) -> Values:
    """Pearson's correlation [F, H]: cov(f, x) / √(var f · var x)."""
    mean = moments / moments[0, 0]
    F, H = mean.shape[0] // 2, mean.shape[1] // 2
    f_F, x_H = mean[1 : F + 1, 0], mean[0, 1 : H + 1]
    var_f_F, var_x_H = mean[F + 1 :, 0] - f_F**2, mean[0, H + 1 :] - x_H**2
    var_f_F[var_f_F <= _LEAST], var_x_H[var_x_H <= _LEAST] = np.nan, np.nan
    return (mean[1 : F + 1, 1 : H + 1] - np.outer(f_F, x_H)) / np.sqrt(np.outer(var_f_F, var_x_H))


def chosen_features(first: dict[Series, Values], second: dict[Series, Values], names: list[str]) -> dict[Unit, Tracked]:
    """The feature of each unit with the strongest correlation in the first half, with that of the second."""
    units = {}
    for series, first_FH in first.items():
        strength_FH = np.nan_to_num(np.abs(first_FH))
        for unit, best in enumerate(strength_FH.argmax(0)):
            correlation = float(second[series][best, unit])
            if strength_FH[best, unit] > 0 and abs(correlation) >= LEAST_CORRELATION:
                units[series, unit] = names[best], correlation
    return units


def most_telling(units: dict[Unit, Tracked], count: int) -> dict[Unit, Tracked]:
    """The `count` units to show: the best unit of each feature, then the second best of each, and so on.

    They are sorted by correlation, the strongest first. Each unit comes with its state of the strongest correlation.
    """
    strongest: dict[tuple[int, int], Unit] = {}
    for series, unit in sorted(units, key=lambda unit: -abs(units[unit][1])):
        strongest.setdefault((series.layer, unit), (series, unit))
    turns: dict[Unit, int] = {}
    of_feature: Counter[str] = Counter()
    for unit in strongest.values():
        feature, _ = units[unit]
        turns[unit] = of_feature[feature]
        of_feature[feature] += 1
    chosen = {*sorted(turns, key=turns.__getitem__)[:count]}
    return {unit: units[unit] for unit in strongest.values() if unit in chosen}


def hardest_words(text: str, bits_N: Values, count: int, least: float = 0.0) -> list[tuple[int, int, float]]:
    """Start, length and bits of the words with most bits in total, above `least`; each word once, where it is hardest.

    A word with the first character, which has no bits, is left out.
    """
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(bits_N))])
    words = []
    for word in _SPELLED.finditer(text):
        start, end = word.span()
        bits = float(sums[end] - sums[start])
        if bits > least and not np.isnan(bits_N[start]):
            words.append((start, end - start, bits))
    by_text: dict[str, tuple[int, int, float]] = {}
    for start, length, bits in sorted(words, key=lambda word: -word[2]):
        by_text.setdefault(text[start : start + length], (start, length, bits))
    return [*by_text.values()][:count]
