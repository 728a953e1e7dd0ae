"""Copies of a corpus in a text: against a naive search, for any texts and blocks."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.inference import novelty
from charlm.inference.novelty import WINDOW, copied_share, copied_stretches, longest_copy


def windows(text: bytes, length: int) -> list[bytes]:
    return [text[start : start + length] for start in range(len(text) - length + 1)]


def naive_stretches(text: bytes, corpus: bytes) -> list[tuple[int, int]]:
    """From left to right the longest stretches of WINDOW ids or more that occur in the corpus."""
    stretches, place = [], 0
    while place < len(text):
        lengths = range(WINDOW, len(text) - place + 1)
        longest = max((length for length in lengths if text[place : place + length] in corpus), default=0)
        if longest:
            stretches.append((place, longest))
        place += longest or 1
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


@given(text_and_corpus(), st.sampled_from([1, 3, 32, 1000]), st.sampled_from([np.uint8, np.uint16, np.uint32]))
@settings(max_examples=200, deadline=None)
def test_as_a_naive_search(both, block, dtype):
    text_ids, corpus_ids = (np.array(ids, dtype) for ids in both)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(novelty, "_BLOCK", block)
        start, length = longest_copy(text_ids, corpus_ids)
        share, stretches = copied_share(text_ids, corpus_ids), copied_stretches(text_ids, corpus_ids)
    text, corpus = map(bytes, both)
    copies = [window for window in windows(text, length) if window in corpus]
    assert text[start : start + length] == min(copies, key=corpus.find)
    assert not any(window in corpus for window in windows(text, length + 1))
    copied = [window in corpus for window in windows(text, WINDOW)]
    assert share == (pytest.approx(np.mean(copied)) if copied else None)
    assert stretches == naive_stretches(text, corpus)


@pytest.mark.parametrize("length", [38, 39, 40, 41, 80, 81, 2000])
def test_stretches_longer_than_a_block(monkeypatch, length):
    monkeypatch.setattr(novelty, "_BLOCK", 64)
    corpus = np.random.default_rng(0).integers(200, size=3000).astype(np.uint8)
    text = np.append(corpus[10 : 10 + length], np.uint8(255))
    assert longest_copy(text, corpus) == (0, length)
    assert copied_stretches(text, corpus) == [(0, length)]
    assert copied_share(text[:-1], corpus) == 1


def test_a_megabyte_takes_well_under_a_second(tinyshakespeare):
    corpus = np.frombuffer(tinyshakespeare.read_bytes(), np.uint8)
    rng = np.random.default_rng(0)
    texts = [*(rng.permutation(corpus[at : at + 500]) for at in (0, 1000, 2000)), corpus[5000:5500]]
    start_s = time.process_time()
    for text in texts:
        longest_copy(text, corpus)
        copied_share(text, corpus)
    assert time.process_time() - start_s < 1
