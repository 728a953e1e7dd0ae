"""The most surprising words of a text, simple features of it, and the units whose activation tracks a feature.

A unit tracks the feature with which it correlates most, in absolute value, over the first half of the text. The
reported correlation is over the second half, so it is not the best of many by chance.
"""

import itertools
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
from tqdm import tqdm

from charlm.data.vocabulary import Ids, Vocabulary
from charlm.inference.reader import STEPS, Series, activations
from charlm.model import CharLM
from charlm.system.arrays import Floats, Floats32

Unit = tuple[Series, int]
"""One state of a layer, and the number of the unit."""
Tracked = tuple[str, float]
"""A feature, and the correlation over the second half of the text, which had no part in the choice of the feature."""

LEAST_CORRELATION = 0.3
"""A weaker correlation, positive or negative, is taken for noise."""
_LEAST_LENGTH = 200
"""A shorter text says nothing about what units track."""
_MOST_LENGTH = 10_000
"""Of a longer text, the beginning says it."""
_LEAST = 1e-6
"""A norm below this is rounding: the value does not change."""

_IDEOGRAPH = "[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd]"
"""A word of its own, because there are no spaces between them."""
_MARK = "\u0300"
"""Stands for a character that belongs to the letter before, such as a vowel sign; no pattern can name all of these."""
_LETTER = rf"(?!{_IDEOGRAPH})\w{_MARK}*"
_SPELLED = re.compile(rf"{_IDEOGRAPH}|(?:{_LETTER})+(?:['’-](?:{_LETTER})+)*")
"""A word with the marks inside it, as in don't."""
_WORD = re.compile(rf"{_IDEOGRAPH}|(?:(?!{_IDEOGRAPH})[^\W\d_]{_MARK}*)+")
_ENDS = ".!?。！？…؟۔।"
"""Ends of sentences."""
_QUOTED = re.compile("|".join(rf"({a}(?:(?!\n\n)[^{b}])*){b}?" for a, b in ('""', "“”", "„“", "«»")))
"""From an opening mark to the one before the closing, or to an empty line."""


def features_of(text: str) -> dict[str, Floats]:
    """Feature → its value at every character of the text, [N]. The value is that after reading the character."""
    line_ends, sentence_ends = _each(text, lambda c: c == "\n"), _each(text, lambda c: c in _ENDS)
    since_line_end, in_word = _since(line_ends), _word_positions(text)
    features = {
        "upper case": _each(text, str.isupper),
        "digit": _each(text, str.isdigit),
        "space": _each(text, lambda c: c in " \t"),
        "line end": line_ends,
        "punctuation": _each(text, lambda c: unicodedata.category(c)[0] in "PS"),
        "end of sentence": sentence_ends,
        "vowel": _each(text, lambda c: c.lower() in "aeiouäöüàáâéèêíîóôúûаеёиоуыэюяαεηιουω"),
        "last letter of a word": _lasts(in_word),
        "last character of a line": _lasts(since_line_end),
        "position in the line": since_line_end,
        "position in the word": in_word,
        "position in the sentence": _since(sentence_ends),
        "inside quotes": _inside_quotes(text),
        "depth of brackets": _bracket_depths(text),
        "depth of indentation": _indentations(text),
        "after a colon in the line": (_since(_each(text, lambda c: c == ":")) < since_line_end).astype(float),
        "after # in the line": (_since(_each(text, lambda c: c == "#")) < since_line_end).astype(float),
    }
    return {name: values for name, values in features.items() if values.min(initial=0) != values.max(initial=0)}


def _with_one_mark(text: str) -> str:
    """The text with _MARK in place of all marks and of the two joiners."""
    marks = [c for c in set(text) if unicodedata.category(c)[0] == "M" or c in "\u200c\u200d"]
    return text.translate(dict.fromkeys(map(ord, marks), _MARK))


def _each(text: str, test: Callable[[str], bool]) -> Floats:
    by_character = {character: float(test(character)) for character in set(text)}
    return np.array([by_character[character] for character in text], np.float64)


def _since(marks_N: Floats) -> Floats:
    """Number of characters since the last that is 1 in `marks_N`, 0 for that one."""
    places_N = np.arange(1.0, len(marks_N) + 1)
    return places_N - np.maximum.accumulate(places_N * marks_N)


def _word_positions(text: str) -> Floats:
    """1 for the first letter of a word, 0 between words. An ideograph is a word."""
    positions_N = np.zeros(len(text))
    for word in _WORD.finditer(_with_one_mark(text)):
        positions_N[word.start() : word.end()] = np.arange(1, len(word[0]) + 1)
    return positions_N


def _lasts(position_N: Floats) -> Floats:
    """1 for the last position above 0 before they begin anew; unknown, so 0, at the end of the text."""
    ends_N = np.zeros_like(position_N)
    ends_N[:-1] = (position_N[:-1] > 0) & (position_N[1:] <= 1)
    return ends_N


def _inside_quotes(text: str) -> Floats:
    """1 from an opening quotation mark to the one before the closing; an empty line closes it."""
    values_N = np.zeros(len(text))
    for quoted in _QUOTED.finditer(text):
        values_N[slice(*quoted.span(quoted.lastindex or 0))] = 1
    return values_N


def _bracket_depths(text: str) -> Floats:
    """How many brackets are open; a closing one that nothing opened counts for nothing."""
    steps_N = _each(text, lambda c: c in "([{") - _each(text, lambda c: c in ")]}")
    depths_N = np.cumsum(steps_N)
    return depths_N - np.minimum(np.minimum.accumulate(depths_N), 0)


def _indentations(text: str) -> Floats:
    """Spaces at the beginning of the line, a tab as four; those of the blanks read so far within them."""
    depths: list[float] = []
    for line in re.findall(r"\n|[^\n]+", text):
        blanks = line[: len(line) - len(line.lstrip(" \t"))]
        widths = [4.0 if blank == "\t" else 1.0 for blank in blanks]
        depths += [*itertools.accumulate(widths), *[sum(widths)] * (len(line) - len(blanks))]
    return np.array(depths)


def activations_shown(model: CharLM, ids: Ids) -> Iterator[dict[Series, Floats32]]:
    """Those of `activations`, with a progress bar on a terminal."""
    total, stretches = math.ceil(len(ids) / STEPS), activations(model, ids)
    yield from tqdm(stretches, "reading", total, disable=None, leave=False, unit_scale=STEPS, unit=" symbols")


def tracked_units(model: CharLM, vocabulary: Vocabulary, ids: Ids) -> dict[Unit, Tracked]:
    """What the units of a model track in the beginning of the text of these ids; none for a text that is too short.

    The value of a feature at each byte of a character is that of the character.
    """
    ids = ids[:_MOST_LENGTH]
    text = vocabulary.decode(ids, "surrogateescape")
    features = features_of(text)
    if len(ids) < _LEAST_LENGTH or not features:
        return {}
    names, stretches = [*features], [*activations_shown(model, ids)]
    features_FN = np.repeat([*features.values()], vocabulary.sizes(text), axis=1)
    middle = features_FN.shape[1] // 2
    units: dict[Unit, Tracked] = {}
    for series in stretches[0]:
        _, _, is_gate = series
        if is_gate:
            continue
        values_NH = np.concatenate([stretch[series] for stretch in stretches])
        first_FH = correlations(features_FN[:, :middle], values_NH[:middle])
        second_FH = correlations(features_FN[:, middle:], values_NH[middle:])
        strength_FH = np.nan_to_num(np.abs(first_FH))
        for unit, best in enumerate(strength_FH.argmax(0)):
            correlation = float(second_FH[best, unit])
            if strength_FH[best, unit] > 0 and abs(correlation) >= LEAST_CORRELATION:
                units[series, unit] = names[best], correlation
    return units


def correlations(features_FN: Floats, values_NH: Floats32) -> Floats:
    """Pearson's correlation [F, H] of every feature with every unit; nan where one of them does not change."""
    f_FN = features_FN - features_FN.mean(1, keepdims=True)
    x_NH = values_NH - values_NH.mean(0, dtype=np.float64)
    norms_F, norms_H = np.linalg.norm(f_FN, axis=1), np.linalg.norm(x_NH, axis=0)
    norms_F[norms_F <= _LEAST], norms_H[norms_H <= _LEAST] = np.nan, np.nan
    return f_FN @ x_NH / np.outer(norms_F, norms_H)


def most_telling(units: dict[Unit, Tracked], count: int) -> dict[Unit, Tracked]:
    """The `count` units to show: the best unit of each feature, then the second best of each, and so on.

    Sorted by correlation, the strongest first. Each unit comes with its most correlated state.
    """
    strongest: dict[tuple[int, int], Unit] = {}
    for series, unit in sorted(units, key=lambda unit: -abs(units[unit][1])):
        layer, _, _ = series
        strongest.setdefault((layer, unit), (series, unit))
    turns: dict[Unit, int] = {}
    of_feature: Counter[str] = Counter()
    for unit in strongest.values():
        feature, _ = units[unit]
        turns[unit] = of_feature[feature]
        of_feature[feature] += 1
    chosen = {*sorted(turns, key=turns.__getitem__)[:count]}
    return {unit: units[unit] for unit in strongest.values() if unit in chosen}


def hardest_words(
    vocabulary: Vocabulary, ids: Ids, bits_N: Floats, count: int, least: float = 0.0
) -> list[tuple[int, int, float]]:
    """Start, length and bits of the words with most bits in total, above `least`; each word once, where it is hardest.

    Starts and lengths count ids. Leaves out a word whose beginning has no bits.
    """
    text = vocabulary.decode(ids, "surrogateescape")
    places = np.concatenate([[0], np.cumsum(vocabulary.sizes(text))]).tolist()
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(bits_N))])
    hardest: dict[str, tuple[int, int, float]] = {}
    for word in _SPELLED.finditer(_with_one_mark(text)):
        spelled = text[word.start() : word.end()]
        start, end = places[word.start()], places[word.end()]
        bits = float(sums[end] - sums[start])
        _, _, most = hardest.get(spelled, (0, 0, least))
        if bits > most and not np.isnan(bits_N[start]):
            hardest[spelled] = start, end - start, bits
    return sorted(hardest.values(), key=lambda word: -word[2])[:count]
