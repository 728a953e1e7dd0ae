"""How many parameters there are, and where they start."""

import math

import pytest
import torch
from torch import Tensor

from charlm.layers import RecurrentLayers
from tests.cells.measure import Case, random_input


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


def without_start(stack: RecurrentLayers) -> dict[str, Tensor]:
    """For each parameter without a bound of its own, a mask of the entries that have no initial value."""
    masks = {}
    for layer in range(stack.num_layers):
        for declared in stack.program(layer).parameters:
            name = f"{declared.name}_l{layer}"
            if declared.bound is not None:
                continue
            rows = torch.tensor([start is None for start in declared.starts or [None]])
            shape = stack.get_parameter(name).shape
            masks[name] = rows[:, None].expand(-1, shape.numel() // len(rows)).reshape(shape)
    return masks


def test_weights_and_biases_start_uniform_within_one_over_root_h(case: Case) -> None:
    stack = case.start(9, 64, 2)
    for name, mask in without_start(stack).items():
        if mask.any():
            values = stack.get_parameter(name)[mask]
            assert values.abs().max() <= 1 / 8, name
            assert values.max() > 0.8 / 8, name
            assert values.min() < -0.8 / 8, name


def test_init_uniform_draws_weights_and_clears_biases(case: Case) -> None:
    stack = case.start(9, 64, 2)
    start = {name: parameter.clone() for name, parameter in stack.named_parameters()}
    for parameter in stack.parameters():
        torch.nn.init.constant_(parameter, 5.0)
    stack.init_uniform_(0.01)
    for name, mask in without_start(stack).items():
        values = stack.get_parameter(name)
        assert torch.equal(values[~mask], start[name][~mask]), name
        if name.startswith("weight") and mask.any():
            assert 0.009 < values[mask].abs().max() <= 0.01, name
        else:
            assert (values[mask] == 0).all(), name


@pytest.mark.parametrize("bound", [-0.1, math.inf, math.nan])
def test_init_uniform_refuses_a_bound_that_is_none(bound: float) -> None:
    with pytest.raises(ValueError, match=r"^rnn: bound=.*; allowed: 0 ≤ bound < ∞$"):
        Case("rnn").start(2, 3).init_uniform_(bound)


@pytest.mark.parametrize("forget_bias", [1.0, -0.5])
def test_lstm_forget_bias(forget_bias: float) -> None:
    stack = Case("lstm").start(3, 4, 2, forget_bias=forget_bias)
    for layer in range(2):
        _, _, b_ih, b_hh = stack.layer_parameters(layer)
        assert (b_ih[4:8] == forget_bias).all()
        assert (b_hh[4:8] == 0).all()


def test_slstm_forget_bias() -> None:
    stack = Case("slstm").start(3, 4, 2, forget_bias=2.5)
    for layer in range(2):
        assert (stack.layer_parameters(layer)[2].view(4, 4) == 2.5).all(1).tolist() == [False, True, False, False]


def test_lstm_with_layer_norm_has_its_forget_bias_after_it() -> None:
    stack = Case("lstm").start(3, 4, 2, layer_norm=True, forget_bias=0.7)
    for layer in range(2):
        _, _, b_ih, b_hh, gain_gates, bias_gates, gain_cell, bias_cell = stack.layer_parameters(layer)
        assert bias_gates.tolist() == [[0.0] * 4, [pytest.approx(0.7)] * 4, [0.0] * 4, [0.0] * 4]
        assert (gain_gates == 1).all()
        assert (gain_cell == 1).all()
        assert (bias_cell == 0).all()
        assert (b_ih.abs() + b_hh.abs() > 0).all()


def test_lstm_without_forget_bias_clears_every_bias_in_init_uniform() -> None:
    stack = Case("lstm").start(3, 4, forget_bias=None)
    stack.init_uniform_(0.1)
    assert (stack.get_parameter("bias_ih_l0") == 0).all()


def test_rhn_gate_bias_of_every_depth() -> None:
    stack = Case("rhn").start(3, 4, 2, depth=3, couple_gates=False, gate_bias=-1.5)
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
        stack = Case("rhn").start(3, 4, couple_gates=couple_gates)
        stack.init_uniform_(0.0)
        outputs.append(stack(torch.randn(6, 2, 3), state)[0])
    torch.testing.assert_close(*outputs)


def test_repr_names_the_options() -> None:
    assert repr(Case("rhn").start(3, 4, depth=2)) == (
        "RecurrentLayers(rhn, 3, 4, num_layers=1, depth=2, couple_gates=True, gate_bias=-2.0, "
        "dropout=0.0, state_dropout=0.0, weight_dropout=0.0, variational=False, zoneout=0.0, residual=False)"
    )
