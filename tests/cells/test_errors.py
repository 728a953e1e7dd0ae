"""What a caller can get wrong, and the whole message."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from charlm.cells import CELLS
from tests.cells.measure import Case

OPTIONS = [
    ("rnn", {"nonlinearity": "sigmoid"}, "rnn: nonlinearity='sigmoid'; allowed: 'tanh', 'relu'"),
    ("lstm", {"layer_norm": "yes"}, "lstm: layer_norm='yes'; allowed: False, True"),
    ("lstm", {"forget_bias": float("nan")}, "lstm: forget_bias=nan; allowed: finite numbers"),
    ("rhn", {"depth": 0}, "rhn: depth=0; allowed: integers ≥ 1"),
    ("rhn", {"couple_gates": None}, "rhn: couple_gates=None; allowed: False, True"),
    ("rhn", {"gate_bias": float("inf")}, "rhn: gate_bias=inf; allowed: finite numbers"),
]


@pytest.mark.parametrize(("kind", "options", "message"), OPTIONS, ids=lambda value: str(value))
def test_options_of_a_kind(kind: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        CELLS[kind](3, 4, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_size": 0}, "input_size=0; allowed: integers ≥ 1"),
        ({"hidden_size": -1}, "hidden_size=-1; allowed: integers ≥ 1"),
        ({"hidden_size": 2.0}, "hidden_size=2.0; allowed: integers ≥ 1"),
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
def test_options_of_every_kind(case: Case, options: dict[str, Any], message: str) -> None:
    sizes: dict[str, Any] = {"input_size": 3, "hidden_size": 4}
    with pytest.raises(ValueError, match=f"^{re.escape(f'{case.kind}: {message}')}$"):
        CELLS[case.kind](**sizes | case.options | options)


@pytest.mark.parametrize("shape", [(5, 3), (5, 2, 4), (0, 2, 3), (5, 2, 3, 1)], ids=str)
def test_input_of_a_wrong_shape(case: Case, shape: tuple[int, ...]) -> None:
    stack = CELLS[case.kind](3, 4)
    message = f"{case.kind}: input of shape {list(shape)}; allowed: [T, B, 3] with T ≥ 1"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        stack(torch.zeros(shape))


@pytest.mark.parametrize("shape", [(2, 5, 4), (1, 2, 4), (2, 2, 3), (2, 4)], ids=str)
def test_state_of_a_wrong_shape(case: Case, shape: tuple[int, ...]) -> None:
    stack = CELLS[case.kind](3, 4, 2)
    wrong = tuple(torch.zeros(shape) for _ in stack.state_names)
    shapes = ", ".join(str(list(shape)) for _ in stack.state_names)
    names = ", ".join(stack.state_names)
    message = f"{case.kind}: state of shapes {shapes}; allowed: ({names}) of shape [L, B, H] = [2, 2, 4] each"
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
        CELLS[kind](3, 4, 2)(torch.zeros(5, 2, 3), state)
