"""Features of a text, what units track, and the hardest words."""

import math

import numpy as np
import pytest

from charlm.look.features import chosen_features, correlations, features_of, hardest_words, most_telling
from charlm.look.predictions import Series


def test_features():
    for name, text, expected in [
        ("inside quotes", 'a "b" c“d”', "0011000110"),
        ("inside quotes", 'a "b\n\nc', "0011000"),
        ("depth of brackets", "a(b[c])", "0112210"),
        ("depth of brackets", "a)b(]", "00010"),
        ("depth of indentation", "a\n  b c\n\td", "0012222044"),
        ("position in the line", "ab\ncd\n", "120120"),
        ("position in the word", "ab, c", "12001"),
        ("last letter of a word", "ab c", "0100"),
        ("position in the word", "\u6211\u4eecab\u53bb\u3002", "111210"),  # three ideographs, each a word
        ("last letter of a word", "\u6211\u4eecab\u53bb\u3002", "110110"),
        ("position in the sentence", "\u6211\u4eec\u3002\u53bb", "1201"),
        ("last character of a line", "ab\nc", "0100"),
        ("after # in the line", "a#b\nc", "01100"),
        ("upper case", "aBé", "010"),
        ("digit", "a1", "01"),
    ]:
        assert "".join(f"{int(value)}" for value in features_of(text)[name]) == expected, (name, text)
    assert "digit" not in features_of("abc")  # it does not change
    assert features_of("") == {}


def test_correlations():
    rng = np.random.default_rng(0)
    features_FN = rng.normal(size=(3, 101))
    values_NH = rng.normal(size=(101, 4))
    values_NH[:, 1] = 2.0  # does not change
    found = correlations(features_FN, values_NH)
    for f in range(3):
        for unit in (0, 2, 3):
            expected = np.corrcoef(features_FN[f], values_NH[:, unit])[0, 1]
            assert found[f, unit] == pytest.approx(expected, abs=1e-12)
    assert np.isnan(found[:, 1]).all()


def test_the_feature_is_chosen_on_one_half_and_reported_on_the_other():
    series = Series(0, "h", False)
    first = {series: np.array([[0.9, math.nan, 0.1], [-0.95, math.nan, math.nan]])}
    second = {series: np.array([[0.8, 0.7, 0.3], [-0.4, 0.1, 0.9]])}
    assert chosen_features(first, second, ["a", "b"]) == {(series, 0): ("b", -0.4), (series, 2): ("a", 0.3)}


def test_the_most_telling_units_take_turns_by_feature_and_come_once():
    h, c = Series(0, "h", False), Series(0, "c", False)
    found = {
        (h, 0): ("a", 0.9),
        (c, 0): ("a", -0.95),
        (h, 1): ("a", 0.8),
        (h, 2): ("b", 0.1),
    }
    assert [*most_telling(found, 2)] == [(c, 0), (h, 2)]
    assert [*most_telling(found, 9)] == [(c, 0), (h, 1), (h, 2)]


def test_hardest_words():
    text = "one two\nfour two and more\n"
    bits_N = np.ones(len(text))
    bits_N[0] = math.nan
    bits_N[4] = 5
    assert hardest_words(text, bits_N, 2) == [(4, 3, 7.0), (8, 4, 4.0)]
    assert hardest_words(text, bits_N, 9, least=3.5) == [(4, 3, 7.0), (8, 4, 4.0), (21, 4, 4.0)]
    assert hardest_words("a \u6211\u4eecab, it's", bits_N[:12], 3) == [(4, 2, 6.0), (8, 4, 4.0), (2, 1, 1.0)]
