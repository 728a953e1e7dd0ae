"""Gradients with respect to earlier states and inputs, against closed forms and finite differences."""

import itertools

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from charlm.cells import CELLS
from charlm.errors import DataError
from charlm.inference.gradients import gradient_norms, influences
from tests.inference.models import H, ids, model_of


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_a_recurrent_matrix_that_is_a_multiple_of_the_identity(factor):
    """h_t = relu(W x_t + a h_{t−1}) with all units above 0: the norm at k is aᵏ⁻¹ times that at 1."""
    model = model_of("rnn", cell={"kind": "rnn", "hidden": H, "nonlinearity": "relu"}, layers=1).double()
    with torch.no_grad():
        model.embedding.weight.abs_()
        for name, parameter in model.layers.named_parameters():
            parameter.copy_(factor * torch.eye(H, dtype=torch.float64)) if name == "weight_hh_l0" else parameter.abs_()
        model.decoder.weight.mul_(1e-3)
    [norms] = gradient_norms(model, ids(200), longest=20, positions=9)
    np.testing.assert_allclose(norms, norms[0] * factor ** np.arange(20), rtol=1e-9)


@pytest.mark.parametrize("kind", CELLS)
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


@pytest.mark.parametrize("embedding", [0, 6])
@pytest.mark.parametrize("reset_id", [None, 3])
def test_influences_are_those_of_finite_differences(monkeypatch, embedding, reset_id):
    """log p of a character changes by influence · ε if the input of an earlier one grows by the factor 1 + ε."""
    monkeypatch.setattr("charlm.inference.gradients._AT_ONCE", 7)
    model, text = model_of("lstm", embedding=embedding).double(), ids(30)
    model.reset_id = reset_id
    found = influences(model, text, reach=5)
    assert found.shape == (30, 5)
    x = torch.from_numpy(text.astype(np.int64))[:, None]
    table = torch.eye(model.vocabulary_size, dtype=torch.float64) if embedding == 0 else model.embedding.weight.detach()
    resets = None if reset_id is None else x == reset_id

    def log_p(scale):
        with torch.no_grad():
            outputs, _ = model.layers.forward_reference(table[x] * scale, None, resets)
            return model.logits(outputs)[:-1, 0].log_softmax(-1).gather(-1, x[1:])[:, 0].numpy()

    expected = np.zeros((30, 5))
    for place in range(29):
        ends = []
        for step in (1e-6, -1e-6):
            scale = torch.ones(30, 1, 1, dtype=torch.float64)
            scale[place] += step
            ends.append(log_p(scale))
        change = (ends[0] - ends[1]) / 2e-6
        for target in range(place + 1, min(place + 6, 30)):
            expected[target, target - place - 1] = change[target - 1]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-8)


def test_the_kernels_give_the_same_influences():
    model, text = model_of("lstm"), ids(300)
    np.testing.assert_allclose(influences(model, text), influences(model.double(), text), atol=2e-5)


def test_a_text_too_short():
    with pytest.raises(DataError, match="found a text of 2 characters; allowed: 3 or more"):
        gradient_norms(model_of(), ids(2))
    assert gradient_norms(model_of(), ids(3)).shape == (2, 1)
