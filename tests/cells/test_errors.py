"""What a caller can get wrong, and the whole message."""

import re
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from charlm.cells import CELLS
from tests.cells.measure import Case

OPTIONS = [
    ("rnn", {"nonlinearity": "sigmoid"}, "Input should be 'tanh' or 'relu'"),
    ("lstm", {"layer_norm": "yes"}, "Input should be a valid boolean"),
    ("lstm", {"forget_bias": float("nan")}, "Input should be a finite number"),
    ("rhn", {"depth": 0}, "Input should be greater than or equal to 1"),
    ("rhn", {"depth": 1001}, "Input should be less than or equal to 1000"),
    ("rhn", {"couple_gates": None}, "Input should be a valid boolean"),
    ("rhn", {"gate_bias": float("inf")}, "Input should be a finite number"),
    *((kind, {"hidden": -1}, "Input should be greater than or equal to 1") for kind in CELLS),
    *((kind, {"hidden": 2.0}, "Input should be a valid integer") for kind in CELLS),
    *((kind, {"hiden": 4}, "Extra inputs are not permitted") for kind in CELLS),
]


@pytest.mark.parametrize(("kind", "options", "message"), OPTIONS, ids=str)
def test_options_of_a_cell(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        CELLS[kind](**options)
    [error] = refused.value.errors()
    assert (error["loc"], error["msg"]) == (tuple(options), message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_size": 0}, "input_size=0; allowed: integers ≥ 1"),
        ({"input_size": 2.0}, "input_size=2.0; allowed: integers ≥ 1"),
        ({"num_layers": True}, "num_layers=True; allowed: integers ≥ 1"),
        ({"dropout": 1.0}, "dropout=1.0; allowed: 0 ≤ dropout < 1"),
        ({"dropout": -0.1}, "dropout=-0.1; allowed: 0 ≤ dropout < 1"),
        ({"state_dropout": 1.5}, "state_dropout=1.5; allowed: 0 ≤ state_dropout < 1"),
        ({"weight_dropout": 1.0}, "weight_dropout=1.0; allowed: 0 ≤ weight_dropout < 1"),
        ({"variational": "no"}, "variational='no'; allowed: False, True"),
        ({"zoneout": -0.5}, "zoneout=-0.5; allowed: 0 ≤ zoneout < 1"),
        ({"residual": "no"}, "residual='no'; allowed: False, True"),
    ],
    ids=str,
)
def test_options_of_layers(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'gru: {message}')}$"):
        Case("gru").start(**{"input_size": 3, "hidden_size": 4} | options)


@pytest.mark.parametrize("shape", [(5, 3), (5, 2, 4), (0, 2, 3), (5, 2, 3, 1)], ids=str)
def test_input_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    stack = Case("gru").start(3, 4)
    message = f"gru: input of shape {list(shape)}; allowed: [T, B, 3] with T ≥ 1"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        stack(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(2, 5, 4), (1, 2, 4), (2, 2, 3), (2, 4)], ids=str)
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_state_of_a_wrong_shape(kind: str, shape: tuple[int, ...]) -> None:
    stack = Case(kind).start(3, 4, 2)
    wrong = tuple(torch.zeros(shape) for _ in stack.state_names)
    shapes = ", ".join(str(list(shape)) for _ in stack.state_names)
    names = ", ".join(stack.state_names)
    message = f"{kind}: state of shapes {shapes}; allowed: ({names}) of shape [L, B, H] = [2, 2, 4] each"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        stack(torch.zeros(5, 2, 3), wrong[0] if len(wrong) == 1 else wrong)


@pytest.mark.parametrize(
    ("kind", "state"),
    # An LSTM of two layers must not take the layers of one tensor for h and c.
    [("lstm", torch.zeros(2, 2, 4)), ("gru", (torch.zeros(2, 2, 4), torch.zeros(2, 2, 4)))],
    ids=["one for two", "two for one"],
)
def test_state_of_another_kind(kind: str, state: Tensor | tuple[Tensor, ...]) -> None:
    with pytest.raises(ValueError, match=f"^{kind}: state of shapes "):
        Case(kind).start(3, 4, 2)(torch.zeros(5, 2, 3), state)
