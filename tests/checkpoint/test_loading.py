"""Weights go into a model of the same names, shapes and types only."""

import pytest
import torch

from charlm.errors import CheckpointError
from charlm.model import build_model, load_weights
from tests.checkpoint.conftest import CONFIG, VOCABULARY, bits


class TestLoadWeights:
    def model(self):
        return build_model(CONFIG.model, len(VOCABULARY))

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"decoder.bias": torch.zeros(5)}, "weights decoder.bias: found (5,); the model has (7,)"),
            ({"decoder.weight": torch.zeros(3, 7)}, "weights decoder.weight: found (3, 7); the model has (7, 3)"),
            ({"decoder.bias": None}, "weights decoder.bias: found none; the model has (7,)"),
            ({"more": torch.zeros(2, 2)}, "weights more: found (2, 2); the model has none"),
            (
                {"decoder.bias": torch.zeros(7, dtype=torch.int8)},
                "weights decoder.bias: found torch.int8; the model has torch.float32",
            ),
            (
                {"decoder.bias": torch.zeros(7, dtype=torch.float64)},
                "weights decoder.bias: found torch.float64; the model has torch.float32",
            ),
        ],
    )
    def test_other_names_shapes_or_types_change_nothing(self, checkpoint, change, text):
        model = self.model()
        before = {name: bits(weight) for name, weight in model.named_parameters()}
        weights = {name: tensor for name, tensor in {**checkpoint.weights, **change}.items() if tensor is not None}
        with pytest.raises(CheckpointError) as error:
            load_weights(model, weights)
        assert str(error.value) == f"{text}; use a checkpoint of the same model section"
        assert {name: bits(weight) for name, weight in model.named_parameters()} == before

    def test_copies(self, checkpoint):
        model = self.model()
        load_weights(model, checkpoint.weights)
        with torch.no_grad():
            model.decoder.bias += 1
        assert torch.equal(model.decoder.bias, checkpoint.weights["decoder.bias"] + 1)
