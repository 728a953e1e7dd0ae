"""Predictions and activations are those of a plain loop over characters in float64."""

import itertools
import math

import numpy as np
import pytest
import torch

from charlm.cells import CELLS
from charlm.layers import RecurrentLayers
from charlm.look import predictions
from charlm.look.predictions import Series, activations, context_curve, predict
from charlm.model import CharLM

V, H = 7, 5


@pytest.fixture(params=["lstm", "sru"])
def network(request, monkeypatch) -> CharLM:
    monkeypatch.setattr(predictions, "_STEPS", 8)
    layers = RecurrentLayers(CELLS[request.param](hidden=H), V, 2, residual=True)
    made = CharLM(V, 0, layers).eval()
    torch.nn.init.normal_(made.decoder.weight)
    return made.double()


@pytest.fixture
def ids() -> np.ndarray:
    return np.random.default_rng(0).integers(V, size=35).astype(np.uint8)


@pytest.mark.parametrize("of_lines", [False, True])
def test_predictions(network, ids, of_lines):
    """Those of a loop over single characters."""
    if of_lines:
        network.reset_id = ids[0] = 3
    predictions, state = predict(network, ids), None
    assert np.isnan([predictions.bits_N[0], predictions.entropy_N[0]]).all()
    assert predictions.rank_N[0] == 0
    for place, (index, true) in enumerate(itertools.pairwise(ids.tolist()), start=1):
        with torch.no_grad():
            outputs, state, _ = network.outputs_and_activations(torch.tensor([[index]]), state)
            p = (outputs[0, 0] @ network.decoder.weight.T + network.decoder.bias).softmax(-1).tolist()
        order = sorted(range(V), key=lambda index: -p[index])
        assert predictions.bits_N[place] == pytest.approx(-math.log2(p[true]), rel=1e-9)
        assert predictions.entropy_N[place] == pytest.approx(-sum(q * math.log2(q) for q in p), rel=1e-9)
        assert predictions.rank_N[place] == 1 + order.index(true)
        assert predictions.top_ids_NK[place].tolist() == order[:5]
        assert predictions.top_p_NK[place] == pytest.approx([p[index] for index in order[:5]], rel=1e-9)


def test_activations_do_not_depend_on_the_stretches(network, ids, monkeypatch):
    stretches = list(activations(network, ids))
    assert len(stretches) == 5
    monkeypatch.setattr(predictions, "_STEPS", 100)
    [whole] = activations(network, ids)
    for series, values_NH in whole.items():
        assert values_NH.shape == (35, H)
        np.testing.assert_allclose(np.concatenate([each[series] for each in stretches]), values_NH, atol=1e-12)
    name = network.layers.state_names[0]
    top = whole[Series(0, name, False)] + whole[Series(1, name, False)]  # residual
    outputs, _ = network.outputs(torch.from_numpy(ids.astype(np.int64))[:, None])
    np.testing.assert_allclose(outputs[:, 0].detach().numpy(), top, atol=1e-12)


def test_memory_is_the_loss_after_exactly_so_many_characters(network, ids):
    curve, places = context_curve(network, ids)
    assert [length for length, _ in curve] == [1, 2, 4, 8]
    assert places.tolist() == list(range(8, 35))
    for length, bits in curve:
        each = [predict(network, ids[place - length : place + 1]).bits_N[-1] for place in places]
        assert bits == pytest.approx(np.mean(each), rel=1e-6)
    assert context_curve(network, ids[:7])[0] == []
