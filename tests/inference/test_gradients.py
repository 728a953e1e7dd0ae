"""Gradients with respect to earlier states, against closed forms and finite differences."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from charlm.inference.gradients import gradient_norms
from tests.inference.models import H, ids, model_of


@pytest.mark.parametrize("kind", ["lstm", "rhn", "slstm"])  # two states, one, and one with internal ones
@torch.no_grad()
def test_norms_are_those_of_finite_differences(kind):
    """Each unit of the state that is carried from one step to the next moves, in float64."""
    model, text = model_of(kind).double(), ids(10).astype(np.int64)
    norms, layers = gradient_norms(model, text, longest=3, positions=2), model.layers

    def loss(window, read, moved, step):
        x = model.embedding(torch.from_numpy(window[:-1]))[:, None]
        state = layers.forward_reference(x[:read])[1]
        state[moved[0]][moved[1], 0, moved[2]] += step
        outputs, _ = layers.forward_reference(x[read:], state)
        return F.cross_entropy(model.logits(outputs[-1]), torch.from_numpy(window[-1:])).item()

    seen = [index for index, name in enumerate(layers.state_names) if name not in layers.cell.internal]
    expected = np.zeros((2, 3))
    for (layer, k), window in itertools.product(np.ndindex(2, 3), (text[:7], text[3:])):
        squares = 0.0
        for tensor, unit in itertools.product(seen, range(H)):
            up, down = (loss(window, 5 - k, (tensor, layer, unit), step) for step in (1e-6, -1e-6))
            squares += ((up - down) / 2e-6) ** 2
        expected[layer, k] += np.sqrt(squares) / 2
    np.testing.assert_allclose(norms, expected, rtol=1e-5)
