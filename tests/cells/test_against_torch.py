"""RNN, LSTM and GRU are torch.nn's: same parameters, same start, same numbers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from charlm.cells import GRU, LSTM, RNN, Cell
from charlm.layers import RecurrentLayers
from tests.cells.measure import as_tuple, assert_equal_runs, random_input, random_state, run

PAIRS = [
    pytest.param(RNN, nn.RNN, {}, id="rnn"),
    pytest.param(RNN, nn.RNN, {"nonlinearity": "relu"}, id="rnn-relu"),
    pytest.param(LSTM, nn.LSTM, {}, id="lstm"),
    pytest.param(GRU, nn.GRU, {}, id="gru"),
]


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS)
@pytest.mark.parametrize("to_torch", [True, False], ids=["to torch", "from torch"])
def test_same_weights_give_the_same_numbers(
    ours: type[Cell], theirs: Callable[..., nn.RNNBase], options: dict[str, Any], to_torch: bool
) -> None:
    stack = RecurrentLayers(ours(hidden=17, **options), 3, 2).double()
    module = theirs(3, 17, 2, **options).double()
    source, target = (stack, module) if to_torch else (module, stack)
    target.load_state_dict(source.state_dict())
    x, state = random_input(stack, 5, 4), random_state(stack, 4)
    contiguous = tuple(tensor.contiguous() for tensor in as_tuple(state))
    y, last = module(x, contiguous[0] if len(contiguous) == 1 else contiguous)

    for forward in (stack, stack.forward_reference):
        found = run(forward, stack, x, state)
        expected = {"y": y} | dict(zip(stack.state_names, as_tuple(last), strict=True))
        assert_equal_runs({name: found[name] for name in expected}, expected)


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS)
def test_the_same_seed_gives_the_same_weights(
    ours: type[Cell], theirs: Callable[..., nn.RNNBase], options: dict[str, Any]
) -> None:
    torch.manual_seed(1)
    as_torch: dict[str, Any] = {"forget_bias": None} if ours is LSTM else {}
    found = RecurrentLayers(ours(hidden=5, **options, **as_torch), 3, 2).state_dict()
    torch.manual_seed(1)
    expected = theirs(3, 5, 2, **options).state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
