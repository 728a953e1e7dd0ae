"""The parts of a corpus that train, validate and test: exact, in order, nothing lost."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.data.corpus import cut
from tests.corpora import load_corpus

WHOLE = (1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    "shares",
    [(0.9, 0.1, 0.0), (0.9, 0.05, 0.05), (0.8, 0.1, 0.1), (0.7, 0.2, 0.1), (1.0, 0.0, 0.0), (0.1, 0.2, 0.7)],
)
def test_splits_are_exact_and_partition_the_text(shares):
    for n in [*range(1, 500), 1_115_394, 99_999_999, 10**12 + 7]:
        ids = np.broadcast_to(np.uint8(0), n)  # of no size in memory
        sizes = [len(part) for part in cut(ids, shares)]
        assert sum(sizes) == n
        assert sizes[0] == n * round(shares[0] * 100) // 100
        assert sizes[0] + sizes[1] == n * round((shares[0] + shares[1]) * 100) // 100
    ids = np.arange(1000)
    np.testing.assert_array_equal(np.concatenate(cut(ids, shares)), ids)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=3).filter(any))
def test_the_last_split_ends_at_the_end_whatever_the_fractions_sum_to(n, shares):
    sizes = [len(part) for part in cut(np.broadcast_to(np.uint8(0), n), shares)]
    assert sum(sizes) == n
    total = sum(Fraction(str(share)) for share in shares)
    assert sizes[0] == Fraction(str(shares[0])) * n // total


def test_the_splits_of_one_source_are_in_order(write):
    text = "".join(map(chr, range(0x100, 0x100 + 100)))
    corpus = load_corpus(write("text", text), level="char", split=(0.9, 0.06, 0.04))
    parts = {name: corpus.vocabulary.decode(ids) for name, ids in corpus.splits.items()}
    assert parts == {"train": text[:90], "valid": text[90:96], "test": text[96:]}
    assert list(parts) == ["train", "valid", "test"]


def test_a_split_of_fraction_0_is_absent(write):
    path = write("text", "abcd")
    assert list(load_corpus(path, level="char", split=(0.5, 0.0, 0.5)).splits) == ["train", "test"]
    assert list(load_corpus(path, level="char", split=WHOLE).splits) == ["train"]


def test_a_source_of_its_own_is_the_whole_split_and_its_fraction_is_ignored(write):
    train, valid, test = write("train", "a" * 900), write("valid", "b" * 7), write("test", "c" * 5)

    def sizes(**others):
        corpus = load_corpus(train, level="char", split=(0.8, 0.1, 0.1), **others)
        parts = {name: corpus.vocabulary.decode(ids) for name, ids in corpus.splits.items()}
        return {name: (part[0], len(part)) for name, part in parts.items()}

    assert sizes() == {"train": ("a", 720), "valid": ("a", 90), "test": ("a", 90)}
    assert sizes(valid_source=valid) == {"train": ("a", 800), "valid": ("b", 7), "test": ("a", 100)}
    assert sizes(test_source=test) == {"train": ("a", 800), "valid": ("a", 100), "test": ("c", 5)}
    assert sizes(valid_source=valid, test_source=test) == {
        "train": ("a", 900),
        "valid": ("b", 7),
        "test": ("c", 5),
    }


def test_a_source_of_its_own_counts_even_where_its_fraction_is_0(write):
    corpus = load_corpus(
        write("train", "aaaa"), level="char", split=WHOLE, valid_source=write("valid", "é"), test_source=None
    )
    assert {name: len(ids) for name, ids in corpus.splits.items()} == {"train": 4, "valid": 1}
    assert corpus.vocabulary.characters == "aé"
    assert (corpus.files, corpus.size_bytes) == (2, 6)
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in ("aaaa", "é")]
    assert corpus.sha256 == hashlib.sha256("".join(digests).encode()).hexdigest()
