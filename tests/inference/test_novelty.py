"""Copies of a corpus in a text: against a naive search, for any texts and blocks."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from charlm.data.encoded import EncodedText
from charlm.data.vocabulary import Vocabulary
from charlm.inference import seen
from charlm.inference.seen import NGRAM, copied_stretches, seen_places


def with_single_spaces(ids: list[int], spaces: list[int]) -> tuple[list[int], list[int]]:
    """The ids with one space in place of several, and where each was."""
    places = [n for n, id in enumerate(ids) if not (n > 0 and {id, ids[n - 1]} <= {*spaces})]
    return [spaces[0] if ids[n] in spaces else ids[n] for n in places], places


def windows(text: bytes, length: int) -> list[bytes]:
    return [text[start : start + length] for start in range(len(text) - length + 1)]


def naive_stretches(copied: list[bool]) -> list[tuple[int, int]]:
    """Runs of copied windows; characters that two runs share count for the first."""
    stretches, end = [], 0
    for is_copied, run in itertools.groupby(range(len(copied)), copied.__getitem__):
        places = [*run]
        if is_copied:
            begin, end = max(places[0], end), places[-1] + NGRAM
            stretches.append((begin, end - begin))
    return stretches


@st.composite
def text_and_corpus(draw):
    """A corpus over few symbols, and a text that is made of stretches of it and of noise."""
    symbols = draw(st.integers(1, 4))
    noise = st.lists(st.integers(0, symbols - 1), max_size=30)
    corpus = draw(st.lists(st.integers(0, symbols - 1), max_size=150))
    bounds = st.tuples(st.integers(0, 150), st.integers(0, 150))
    copied = bounds.map(lambda pair: corpus[min(pair) : max(pair)])
    return [*itertools.chain(*draw(st.lists(st.one_of(noise, copied), max_size=4)))], corpus


LEFT, RIGHT = range(1, 20), range(20, 60)


@given(
    both=text_and_corpus(),
    spaces=st.sampled_from([[], [0], [1, 2]]),
    block=st.sampled_from([1, 3, 32, 1000]),
    dtype=st.sampled_from([np.uint8, np.uint16, np.uint32]),
)
@settings(deadline=None)
@example(both=([*range(60)], [*range(80)]), spaces=[], block=32, dtype=np.uint8)  # copied from two blocks and more
@example(both=([*LEFT, 0, *RIGHT], [*LEFT, 0, 0, 0, *RIGHT]), spaces=[0], block=1, dtype=np.uint8)
def test_as_a_naive_search(both, spaces, block, dtype):
    text_ids, corpus_ids = (np.array(ids, dtype) for ids in both)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seen, "_BLOCK", block)
        [*_, (stretches, share)] = copied_stretches([corpus_ids[:30], text_ids], [corpus_ids], spaces)
    (text, places), (corpus, _) = (with_single_spaces(ids, spaces) for ids in both)
    copied = [window in bytes(corpus) for window in windows(bytes(text), NGRAM)]
    expected = []
    for begin, length in naive_stretches(copied):
        expected.append((places[begin], places[begin + length - 1] + 1 - places[begin]))
    assert stretches == expected
    assert share == (pytest.approx(np.mean(copied)) if copied else None)


def test_a_stretch_was_trained_on_and_a_phrase_was_not():
    corpus, other = np.random.RandomState(1).randint(0, 128, 3_000), np.random.RandomState(2).randint(128, 256, 400)
    text = np.concatenate([other[:200], corpus[1_000:1_100], other[200:], corpus[500:750], other[:9]]).astype(np.uint8)
    places = seen_places(EncodedText(text, Vocabulary("byte")), [corpus.astype(np.uint8)], "")
    assert np.flatnonzero(places).tolist() == [*range(500, 750)]
