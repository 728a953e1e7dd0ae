"""Fixtures for tests of the choice of settings."""

from types import SimpleNamespace

import numpy as np
import pytest

from charlm.data.corpus import Corpus
from charlm.data.vocabulary import Vocabulary
from charlm.model import count_parameters
from tests.text import words_text


@pytest.fixture
def speed(monkeypatch):
    """A machine of a known speed: an update takes 1 ms and 10 ns for each parameter and stream of 64 characters.

    `factor` makes it slower, models of `faster` hidden units faster, `without_kernels` all but the plain LSTM slower.
    `largest` is the number of hidden units that fit into memory, and `measured` has the configs that were measured.
    """
    speed = SimpleNamespace(factor=1.0, faster=None, without_kernels=1, largest=10**6, measured=[])

    def measure(config, machine, vocabulary_size, *_):
        speed.measured.append(config)
        model = config.model
        if model.cell.hidden > speed.largest:
            return None
        is_plain = model.cell.kind == "lstm" and model.layers == 1 and not model.cell.layer_norm
        factor = speed.factor * (1 if is_plain else speed.without_kernels)
        factor /= 1.5 if model.cell.hidden == speed.faster else 1
        return factor * (1e-3 + 1e-8 * count_parameters(model, vocabulary_size) * config.train.batch_size)

    monkeypatch.setattr("charlm.choice.speed.measure", measure)
    return speed


@pytest.fixture
def text_file(tmp_path):
    file = tmp_path / "my.txt"
    file.write_text(words_text(120_000))
    return str(file)


@pytest.fixture
def text_of(monkeypatch):
    """Make every source a text of so many characters, without writing it."""

    def build(chars, vocabulary=70):
        ids = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), shape=(chars,), strides=(0,))
        corpus = Corpus(Vocabulary.of_code_points(np.arange(32, 32 + vocabulary)), {"train": ids}, "", chars, 1)
        text = SimpleNamespace(corpus=lambda vocabulary, whole: corpus)
        monkeypatch.setattr("charlm.choice.suggest.Text", lambda data: text)

    return build
