"""Fixtures for tests of the choice of settings."""

import numpy as np
import pytest

import charlm.choice.speed
from charlm.data.corpus import Corpus
from charlm.data.vocabulary import Vocabulary
from tests.text import words_text


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of a known speed: an update takes 1 ms and 10 ns for each parameter and stream of 64 characters."""
    monkeypatch.setenv("CHARLM_CACHE", str(tmp_path / "cache"))
    measured = []

    def measure(config, device, vocabulary_size, *_):
        measured.append(config)
        from charlm.model import count_parameters

        parameters = count_parameters(config.model, vocabulary_size)
        return machine.factor * (1e-3 + 1e-8 * parameters * config.train.batch_size)

    def machine(factor):
        machine.factor = factor

    machine.factor, machine.measured = 1.0, measured
    monkeypatch.setattr(charlm.choice.speed, "measure", measure)
    monkeypatch.setattr("charlm.choice.suggest.compile_kernels", lambda *_: None)
    return machine


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
        monkeypatch.setattr("charlm.choice.suggest.load_configured_corpus", lambda data, vocabulary, whole: corpus)

    return build
