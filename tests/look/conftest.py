"""Models and pages that the tests of `charlm look` share."""

from dataclasses import replace

import pytest
import torch

from charlm.cells import LSTM
from charlm.data.vocabulary import Level, Vocabulary
from charlm.inference.trained import TrainedModel
from charlm.layers import RecurrentLayers
from charlm.model import CharLM


@pytest.fixture
def of_characters(model):
    """A model with random weights over the characters of a text, or over bytes."""

    def make(text: str, level: Level = "char", **other: object) -> TrainedModel:
        vocabulary = Vocabulary(level, "".join(sorted(set(text))) if level == "char" else "")
        layers = RecurrentLayers(LSTM(hidden=6), len(vocabulary))
        network = CharLM(len(vocabulary), 0, layers).eval()
        torch.nn.init.normal_(network.decoder.weight)
        return replace(model, vocabulary=vocabulary, network=network, **other)

    return make
