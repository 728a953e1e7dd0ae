"""What of a sample stands verbatim in a corpus: against a naive search, for any texts, blocks and hashes."""

import itertools
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.inference import novelty as module
from charlm.inference.novelty import WINDOW, Novelty, copied_stretches, novelty


def naive(sample: list[int], corpus: list[int]) -> tuple[list[int], float | None]:
    """The longest stretch, of several as long the first in the corpus; and the share of windows."""

    def windows(ids, length):
        return [tuple(ids[start : start + length]) for start in range(len(ids) - length + 1)]

    stretch = ()
    for length in range(1, len(sample) + 1):
        own = set(windows(sample, length))
        stretch = next((window for window in windows(corpus, length) if window in own), None) or stretch
        if len(stretch) < length:
            break
    own, there = windows(sample, WINDOW), set(windows(corpus, WINDOW))
    return list(stretch), sum(window in there for window in own) / len(own) if own else None


def check(samples, corpus, dtype=np.uint8):
    found = novelty([np.array(sample, dtype) for sample in samples], np.array(corpus, dtype))
    for sample, one in zip(samples, found, strict=True):
        stretch, share = naive(sample, corpus)
        assert sample[one.start : one.start + one.longest] == stretch
        assert one.windows_share == (None if share is None else pytest.approx(share))


@st.composite
def texts(draw):
    """A corpus over few symbols, and samples that are made of pieces of it and of noise."""
    symbols = draw(st.integers(1, 4))
    noise = st.lists(st.integers(0, symbols - 1), max_size=30)
    corpus = draw(st.lists(st.integers(0, symbols - 1), max_size=150))

    def piece(bounds):
        return corpus[min(bounds) : max(bounds)]

    copied = st.tuples(st.integers(0, 150), st.integers(0, 150)).map(piece)
    parts = st.lists(st.one_of(noise, copied), max_size=4).map(lambda parts: [*itertools.chain(*parts)])
    return draw(st.lists(parts, min_size=1, max_size=4)), corpus


@given(texts(), st.sampled_from([1, 3, 16, 1000]))
@settings(max_examples=300, deadline=None)
def test_as_a_naive_search_finds_it(both, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", block)
        check(*both)


@given(texts())
@settings(max_examples=100, deadline=None)
def test_nothing_is_found_by_its_hash_alone(both):
    """With base 1 a hash is the sum of its ids, the same for many windows."""
    samples, corpus = both
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BASE", 1)
        found = novelty([np.array(sample, np.uint8) for sample in samples], np.array(corpus, np.uint8))
    for sample, one in zip(samples, found, strict=True):
        stretch = bytes(sample[one.start : one.start + one.longest])
        assert stretch in bytes(corpus)
        assert len(stretch) == one.longest


def test_a_window_of_the_same_hash_is_not_found(monkeypatch):
    monkeypatch.setattr(module, "_BASE", 1)
    window = np.arange(WINDOW, dtype=np.uint8)
    assert novelty([window], window[::-1].copy())[0].windows_share == 0
    assert novelty([window], np.concatenate([window[::-1], window]))[0].windows_share == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_ids_of_any_width(dtype):
    corpus = np.random.default_rng(0).integers(np.iinfo(dtype).max, size=3000, endpoint=True, dtype=dtype)
    sample = np.concatenate([corpus[100:130], corpus[2000:2045], corpus[:10]])
    check([sample.tolist()], corpus.tolist(), dtype)
    assert novelty([sample], corpus)[0].longest >= 45


def test_a_stretch_over_many_blocks(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK", 64)
    corpus = np.random.default_rng(0).integers(50, size=5000).astype(np.uint8)
    assert novelty([corpus[700:2700], corpus], corpus) == [Novelty(0, 2000, 1.0), Novelty(0, 5000, 1.0)]


@pytest.mark.parametrize("length", [*range(38, 44), 80, 81, 82])
def test_stretches_about_as_long_as_what_a_block_reads_ahead(monkeypatch, length):
    monkeypatch.setattr(module, "_BLOCK", 256)
    corpus = np.random.default_rng(0).integers(200, size=2000).astype(np.uint8)
    sample = np.append(corpus[10 : 10 + length], np.uint8(255))
    assert [(found.start, found.longest) for found in novelty([sample], corpus)] == [(0, length)]


def test_edges():
    corpus = np.array([1, 2, 3], np.uint8)
    samples = [np.array(ids, np.uint8) for ids in ([], [7], [3], [2, 3, 1], [9] * 25)]
    assert novelty(samples, corpus) == [
        Novelty(0, 0, None), Novelty(0, 0, None), Novelty(0, 1, None), Novelty(0, 2, None), Novelty(0, 0, 0.0),
    ]  # fmt: skip
    assert novelty([corpus], corpus[:0]) == [Novelty(0, 0, None)]


def test_a_sample_s_stretch_does_not_hang_on_the_other_samples():
    samples, corpus = [np.array(ids, np.uint8) for ids in ([0, 2, 0, 0], [0, 1, 0, 0])], np.array([0, 0, 1], np.uint8)
    assert novelty(samples, corpus) == [novelty([sample], corpus)[0] for sample in samples]
    assert novelty(samples, corpus) == [Novelty(2, 2, None), Novelty(2, 2, None)]


def test_just_a_window_and_one_less():
    corpus = np.arange(100, dtype=np.uint8)
    assert novelty([corpus[5:25], corpus[5:24]], corpus) == [Novelty(0, 20, 1.0), Novelty(0, 19, None)]


def test_many_samples_that_share_their_stretches():
    rng = np.random.default_rng(1)
    corpus = rng.integers(4, size=20_000).astype(np.uint8)
    samples = [np.concatenate([corpus[at : at + 40], rng.integers(4, size=30).astype(np.uint8)]) for at in range(60)]
    for found in novelty(samples, corpus):
        assert found.longest >= 40
        assert found.windows_share >= 21 / 51


def test_memory_does_not_grow_with_the_number_of_lengths_looked_for():
    """Runs of 1, 2, 3 … zeros: each is the longest stretch so far, and one longer is looked for."""
    corpus = np.ones(sum(range(300)), np.uint8)
    ends = np.cumsum(range(1, 300)) - 1
    for run, end in enumerate(ends):
        corpus[end - run : end] = 0
    tracemalloc.start()
    try:
        [found] = novelty([np.zeros(400, np.uint8)], corpus)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.longest == 298
    assert peak_bytes < (module._KEPT + 20) * 8 * len(corpus)


def test_a_megabyte_takes_well_under_a_second(tinyshakespeare):
    corpus = np.frombuffer(tinyshakespeare.read_bytes(), np.uint8)
    rng = np.random.default_rng(0)
    samples = [rng.permutation(corpus[at : at + 500]) for at in (0, 1000, 2000)]
    start_s = time.process_time()
    novelty([*samples, corpus[5000:5500]], corpus)
    assert time.process_time() - start_s < 1


def naive_stretches(text, corpus):
    """From left to right the longest stretches of WINDOW ids or more that stand in the corpus."""
    found, place, whole = [], 0, bytes(corpus)
    while place < len(text):
        lengths = range(WINDOW, len(text) - place + 1)
        longest = max((length for length in lengths if bytes(text[place : place + length]) in whole), default=0)
        if longest:
            found.append((place, longest))
        place += longest or 1
    return found


@pytest.mark.parametrize("block", [32, 50, 2**17])
def test_copied_stretches(monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    rng = np.random.default_rng(block)
    for symbols in (1, 2, 30):
        corpus = rng.integers(symbols, size=300)
        pieces = [
            corpus[:45],
            rng.integers(symbols, size=9),
            corpus[100:119],
            corpus[30:90],
            corpus[31:90],
            corpus[260:],
        ]
        text = np.concatenate([*pieces, corpus[50:70], rng.integers(symbols, size=30)])
        found = copied_stretches(text.astype(np.uint8), corpus.astype(np.uint8))
        assert found == naive_stretches(text.tolist(), corpus.tolist()), symbols


def test_copied_stretches_of_short_texts():
    corpus = np.arange(100, dtype=np.uint8)
    assert copied_stretches(corpus[: WINDOW - 1], corpus) == []
    assert copied_stretches(corpus[:WINDOW], corpus[:10]) == []
    assert copied_stretches(corpus[5 : 5 + WINDOW], corpus) == [(0, WINDOW)]
