"""How many parameters there are, and where they start."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from charlm.cells import CELLS, LSTM, RHN, SLSTM, RecurrentBase
from tests.cells.measure import Case, random_input

INPUTS, HIDDEN, LAYERS = 7, 5, 3


def gated(gates: int, below: int) -> int:
    """G·H·I + G·H·H + 2·G·H, as torch.nn."""
    return gates * HIDDEN * (below + HIDDEN + 2)


def highway(maps: int, depth: int, below: int) -> int:
    """D·(G·H·H + G·H) + G·H·I."""
    return depth * (maps * HIDDEN * HIDDEN + maps * HIDDEN) + maps * HIDDEN * below


COUNTS = [
    (Case("rnn"), lambda below: gated(1, below)),
    (Case("lstm"), lambda below: gated(4, below)),
    (Case("lstm", {"layer_norm": True}), lambda below: gated(4, below) + 8 * HIDDEN + 2 * HIDDEN),
    (Case("gru"), lambda below: gated(3, below)),
    (Case("rhn"), lambda below: highway(2, 5, below)),
    (Case("rhn", {"depth": 2}), lambda below: highway(2, 2, below)),
    (Case("rhn", {"depth": 2, "couple_gates": False}), lambda below: highway(3, 2, below)),
    (Case("slstm"), lambda below: 4 * HIDDEN * (below + HIDDEN + 1)),
]


def test_every_kind_is_counted() -> None:
    if missing := set(CELLS) - {case.kind for case, _ in COUNTS}:
        pytest.skip(f"COUNTS has no formula for {', '.join(sorted(missing))}")


@pytest.mark.parametrize(("case", "count_of_layer"), COUNTS, ids=[str(case) for case, _ in COUNTS])
def test_parameter_count(case: Case, count_of_layer: Callable[[int], int]) -> None:
    stack = CELLS[case.kind](INPUTS, HIDDEN, LAYERS, **case.options)
    expected = count_of_layer(INPUTS) + (LAYERS - 1) * count_of_layer(HIDDEN)
    assert sum(parameter.numel() for parameter in stack.parameters()) == expected


def test_every_parameter_takes_part(case: Case) -> None:
    alive: dict[str, Tensor] = {}
    # Several stacks, for a relu that is dead in one lives in another.
    for _ in range(5):
        stack = case.build(3, 4, 2)
        y, _ = stack(random_input(stack, 8, 8))
        y.square().sum().backward()
        for name, parameter in stack.named_parameters():
            assert parameter.grad is not None, name
            alive[name] = alive.get(name, torch.tensor(False)) | (parameter.grad != 0)
    assert all(entries.all() for entries in alive.values()), alive


def special_biases(stack: RecurrentBase, layer: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Copies of a layer's parameters, and a mask of the entries that the ordinary rule sets."""
    found = {name: p.detach().clone() for name, p in stack.named_parameters() if name.endswith(f"_l{layer}")}
    marked = copy.deepcopy(stack)
    with torch.no_grad():
        for parameter in marked.parameters():
            parameter.fill_(torch.pi)
        marked.set_special_biases()
    return found, {name: marked.get_parameter(name) == torch.pi for name in found}


def test_weights_and_biases_start_uniform_within_one_over_root_h(case: Case) -> None:
    hidden_size = 64
    bound = 1 / math.sqrt(hidden_size)
    stack = CELLS[case.kind](9, hidden_size, 2, **case.options)
    for layer in range(2):
        found, ordinary = special_biases(stack, layer)
        for name, tensor in found.items():
            if "_ln_" in name:
                continue
            values = tensor[ordinary[name]]
            assert values.abs().max() <= bound, name
            assert values.max() > 0.8 * bound, name
            assert values.min() < -0.8 * bound, name


def test_init_uniform_draws_weights_and_clears_biases(case: Case) -> None:
    stack = CELLS[case.kind](9, 64, 2, **case.options)
    start = {name: parameter.clone() for name, parameter in stack.named_parameters()}
    torch.nn.init.constant_(next(stack.parameters()), 5.0)
    stack.init_uniform_(0.01)
    for layer in range(2):
        found, ordinary = special_biases(stack, layer)
        for name, tensor in found.items():
            if "_ln_" in name:
                assert torch.equal(tensor, start[name]), name
            elif name.startswith("weight"):
                assert 0.009 < tensor.abs().max() <= 0.01, name
            else:
                assert (tensor[ordinary[name]] == 0).all(), name
                assert torch.equal(tensor[~ordinary[name]], start[name][~ordinary[name]]), name


@pytest.mark.parametrize("bound", [-0.1, math.inf, math.nan])
def test_init_uniform_refuses_a_bound_that_is_none(bound: float) -> None:
    with pytest.raises(ValueError, match=r"^rnn: bound=.*; allowed: 0 ≤ bound < ∞$"):
        CELLS["rnn"](2, 3).init_uniform_(bound)


@pytest.mark.parametrize("forget_bias", [1.0, -0.5])
def test_lstm_forget_bias(forget_bias: float) -> None:
    stack = LSTM(3, 4, 2, forget_bias=forget_bias)
    for layer in range(2):
        _, _, b_ih, b_hh = stack.layer_parameters(layer)
        assert (b_ih[4:8] == forget_bias).all()
        assert (b_hh[4:8] == 0).all()


def test_slstm_forget_bias() -> None:
    stack = SLSTM(3, 4, 2, forget_bias=2.5)
    for layer in range(2):
        assert (stack.layer_parameters(layer)[2].view(4, 4) == 2.5).all(1).tolist() == [False, True, False, False]


def test_lstm_with_layer_norm_has_its_forget_bias_after_it() -> None:
    stack = LSTM(3, 4, 2, layer_norm=True, forget_bias=0.7)
    for layer in range(2):
        _, _, b_ih, b_hh, gain_gates, bias_gates, gain_cell, bias_cell = stack.layer_parameters(layer)
        assert bias_gates.tolist() == [[0.0] * 4, [pytest.approx(0.7)] * 4, [0.0] * 4, [0.0] * 4]
        assert (gain_gates == 1).all()
        assert (gain_cell == 1).all()
        assert (bias_cell == 0).all()
        assert (b_ih.abs() + b_hh.abs() > 0).all()


def test_lstm_without_forget_bias_clears_every_bias_in_init_uniform() -> None:
    stack = LSTM(3, 4, forget_bias=None)
    stack.init_uniform_(0.1)
    assert (stack.get_parameter("bias_ih_l0") == 0).all()


def test_rhn_gate_bias_of_every_depth() -> None:
    stack = RHN(3, 4, 2, depth=3, couple_gates=False, gate_bias=-1.5)
    for layer in range(2):
        bias = stack.get_parameter(f"bias_hh_l{layer}")
        assert bias.shape == (3, 12)
        assert (bias[:, :4].abs() <= 0.5).all()
        assert (bias[:, 4:8] == -1.5).all()
        assert (bias[:, 8:] == 1.5).all()


def test_rhn_learned_carry_starts_as_the_coupled_one() -> None:
    state = torch.randn(1, 2, 4)
    outputs = []
    for couple_gates in (True, False):
        stack = RHN(3, 4, couple_gates=couple_gates)
        stack.init_uniform_(0.0)
        outputs.append(stack(torch.randn(6, 2, 3), state)[0])
    torch.testing.assert_close(*outputs)


def test_repr_names_the_options() -> None:
    assert repr(RHN(3, 4, depth=2)) == (
        "RHN(3, 4, num_layers=1, depth=2, couple_gates=True, gate_bias=-2.0, "
        "dropout=0.0, state_dropout=0.0, weight_dropout=0.0, variational=False, zoneout=0.0, residual=False)"
    )
