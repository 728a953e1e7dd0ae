"""What is found out about a text."""

import math

import numpy as np
import pytest

from charlm.choice.text import heldout_nats, mean_line_chars, ngram_nats
from tests.corpora import load_corpus
from tests.text import MarkovSource, words_text


@pytest.fixture
def facts_of(tmp_path):
    """The 5-gram model's score of a text, and the mean length of its lines."""

    def find(text):
        file = tmp_path / "text.txt"
        file.write_text(text)
        corpus = load_corpus(str(file), level="char", split=(1, 0, 0))
        ids = corpus.splits["train"]
        return ngram_nats(ids, len(corpus.vocabulary)), mean_line_chars(ids, corpus.vocabulary)

    return find


def test_a_source_of_known_entropy(facts_of):
    """No model scores less than the source's entropy; five characters of context are enough to come near it."""
    source = MarkovSource()
    nats, _ = facts_of(source.text(200_000, seed=3))
    assert source.entropy_nats * 0.99 < nats < source.entropy_nats * 1.05


def test_characters_drawn_evenly():
    ids = np.random.default_rng(1).integers(50, size=20_000).astype(np.uint8)
    assert math.log(50) < heldout_nats([ids[:16_000]], [ids[16_000:]], 50) < 1.2 * math.log(50)


def test_probabilities_sum_to_one():
    known = np.random.default_rng(2).integers(4, size=300).astype(np.uint8)
    ends = [np.append(known[100:105], np.uint8(last)) for last in range(4)]
    assert sum(math.exp(-heldout_nats([known], [end], 4)) for end in ends) == pytest.approx(1)


@pytest.mark.parametrize("length", [500, 2_001, 60_000])
def test_lines_and_any_length(facts_of, length):
    text = words_text(length)
    nats, line_chars = facts_of(text)
    assert 0 < nats < math.log(30)
    assert line_chars == pytest.approx(length / (text.count("\n") + 1), rel=0.1)


def test_repetition_is_easy_and_has_no_lines(facts_of):
    nats, line_chars = facts_of("abcdefghij" * 3000)
    assert (nats < 0.01, line_chars) == (True, 30_000)
