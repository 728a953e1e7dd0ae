"""What is found out about a text."""

import math

import numpy as np
import pytest

from charlm.choice.text import ngram_nats, text_facts
from tests.corpora import load_corpus
from tests.text import MarkovSource, words_text


def facts_of(tmp_path, text):
    file = tmp_path / "text.txt"
    file.write_text(text)
    return text_facts(load_corpus(str(file), level="char", split=(1, 0, 0)))


def test_a_source_of_known_entropy(tmp_path):
    """No model scores less than the source's entropy; five characters of context are enough to come near it."""
    source = MarkovSource()
    found = facts_of(tmp_path, source.text(200_000, seed=3))
    assert source.entropy_nats * 0.99 < found.ngram_nats < source.entropy_nats * 1.05
    assert found.chars == 200_000
    assert found.vocabulary == len(source.letters)


def test_characters_drawn_evenly():
    ids = np.random.default_rng(1).integers(50, size=20_000).astype(np.uint8)
    assert math.log(50) < ngram_nats([ids[:16_000]], [ids[16_000:]], 50) < 1.2 * math.log(50)


def test_probabilities_sum_to_one():
    rng = np.random.default_rng(2)
    known = rng.integers(4, size=300).astype(np.uint8)
    context = known[100:105]
    ends = [np.append(context, np.uint8(last)) for last in range(4)]
    assert sum(math.exp(-ngram_nats([known], [end], 4)) for end in ends) == pytest.approx(1)


def test_repetition_is_easy(tmp_path):
    assert facts_of(tmp_path, "abcdefghij" * 3000).ngram_nats < 0.01
    found = facts_of(tmp_path, words_text(60_000))
    assert found.line_chars == pytest.approx(60_000 / words_text(60_000).count("\n"), rel=0.1)


@pytest.mark.parametrize("length", [500, 2_001, 300_000])
def test_any_length(tmp_path, length):
    found = facts_of(tmp_path, words_text(length))
    assert found.chars == length
    assert 0 < found.ngram_nats < math.log(30)


def test_text_without_lines(tmp_path):
    assert facts_of(tmp_path, "ab" * 2000).line_chars == pytest.approx(4000, rel=0.01)
