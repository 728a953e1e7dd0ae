"""Dropout: what it drops, when, and how its masks are drawn."""

import pytest
import torch
from torch import Tensor

from charlm.layers import RecurrentLayers, dropout_mask
from charlm.layers.backend import LayerCall
from charlm.layers.reference import reference_layer
from tests.cells.measure import CASES, Case, as_tuple, random_input
from tests.pairwise import pairwise


def echo(num_layers: int, hidden_size: int, **options: object) -> RecurrentLayers:
    """A stack in which every layer repeats its (positive) input: relu, identity weights, no recurrence."""
    stack = Case("rnn").start(hidden_size, hidden_size, num_layers, nonlinearity="relu", **options)
    stack.init_uniform_(0.0)
    for layer in range(num_layers):
        torch.nn.init.eye_(stack.get_parameter(f"weight_ih_l{layer}"))
    return stack


def memory(hidden_size: int, **options: object) -> RecurrentLayers:
    """A layer that does nothing but repeat its (positive) state."""
    stack = Case("rnn").start(1, hidden_size, nonlinearity="relu", **options)
    stack.init_uniform_(0.0)
    torch.nn.init.eye_(stack.get_parameter("weight_hh_l0"))
    return stack


def values(tensor: Tensor) -> list[float]:
    return sorted(set(tensor.flatten().tolist()))


@pytest.fixture(params=["kernel", "torch"])
def masks_by(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("needs_kernels" if request.param == "kernel" else "no_kernels")


@pytest.mark.usefixtures("masks_by")
def test_a_mask_scales_what_it_keeps() -> None:
    mask = dropout_mask((400, 500), 0.2, like=torch.zeros(1, dtype=torch.float64))
    assert (mask.shape, mask.dtype) == ((400, 500), torch.float64)
    # On the CPU p is a multiple of 2⁻¹⁶.
    assert values(mask) == pytest.approx([0.0, 1.25], rel=1e-5)
    # Standard error of the mean: 1.25 · √(0.2 · 0.8 / 200,000) = 0.0011
    assert mask.mean().item() == pytest.approx(1.0, abs=0.005)
    for p, kept in ((1e-9, 1.0), (1 - 1e-9, 0.0), (0.5, 0.5)):
        mask = dropout_mask((301, 7), p, like=torch.zeros(1))
        assert (mask > 0).float().mean().item() == pytest.approx(kept, abs=0.05)
        assert mask.isfinite().all()


@pytest.mark.usefixtures("masks_by")
def test_elements_of_a_mask_are_independent_and_come_from_the_global_generator() -> None:
    like = torch.zeros(1)
    kept = dropout_mask((1000, 400), 0.3, like) > 0
    # Neighbors, also those of one random number, both kept: 0.49; standard error 0.0008.
    for step in (1, 2, 3, 4, 400):
        flat = kept.flatten()
        assert (flat[step:] & flat[:-step]).float().mean().item() == pytest.approx(0.49, abs=0.005)
    assert kept.float().mean(0).std().item() == pytest.approx((0.21 / 1000) ** 0.5, rel=0.15)
    torch.manual_seed(1)
    first, second = dropout_mask((50,), 0.5, like), dropout_mask((50,), 0.5, like)
    torch.manual_seed(1)
    assert torch.equal(dropout_mask((50,), 0.5, like), first)
    assert not torch.equal(first, second)


def test_dropout_between_layers_draws_a_mask_for_every_step() -> None:
    y, _ = echo(2, 30, dropout=0.5)(torch.ones(20, 4, 30))
    assert values(y) == [0.0, 2.0]
    assert y.mean().item() == pytest.approx(1.0, abs=0.1)
    assert not torch.equal(y[0], y[1])
    assert not torch.equal(y[:, 0], y[:, 1])


def test_variational_dropout_draws_one_mask_for_all_steps_of_a_call() -> None:
    stack = echo(2, 30, dropout=0.5, variational=True)
    y, _ = stack(torch.ones(20, 4, 30))
    assert values(y) == [0.0, 2.0]
    assert (y == y[0]).all()
    assert not torch.equal(y[0, 0], y[0, 1])
    assert not torch.equal(y[0], stack(torch.ones(20, 4, 30))[0][0])


def test_dropout_spares_the_first_input_and_the_last_output() -> None:
    y, _ = echo(1, 30, dropout=0.5)(torch.ones(20, 4, 30))
    assert (y == 1).all()
    y, _ = echo(3, 30, dropout=0.5)(torch.ones(20, 4, 30))
    assert values(y) == [0.0, 4.0], "of three layers, two have a mask"


def test_dropout_spares_what_a_residual_connection_adds() -> None:
    y, _ = echo(3, 30, dropout=0.5, residual=True)(torch.ones(20, 4, 30))
    # x + m x of the second layer, (1 + m′)(1 + m) x of the third, masks m and m′ of 0 and 2.
    assert values(y) == [1.0, 3.0, 9.0]


def test_state_dropout_holds_one_mask_for_all_steps_of_a_call() -> None:
    stack = memory(30, state_dropout=0.5)
    state = torch.ones(1, 4, 30)
    y, _ = stack(torch.zeros(6, 4, 1), state)
    mask = y[0]
    assert values(mask) == [0.0, 2.0]
    assert not torch.equal(mask[0], mask[1])
    for t in range(6):
        assert torch.equal(y[t], mask ** (t + 1))
    assert not torch.equal(stack(torch.zeros(1, 4, 1), state)[0][0], mask)


def test_weight_dropout_holds_one_mask_for_all_steps_and_streams_of_a_call() -> None:
    stack = memory(30, weight_dropout=0.5)
    state = torch.ones(1, 4, 30)
    y, _ = stack(torch.zeros(6, 4, 1), state)
    mask = y[0, 0]
    assert values(mask) == [0.0, 2.0]
    for t in range(6):
        assert torch.equal(y[t], (mask ** (t + 1)).expand(4, 30))
    assert not torch.equal(stack(torch.zeros(1, 4, 1), state)[0][0, 0], mask)


def test_zoneout_keeps_other_units_at_every_step() -> None:
    stack = Case("rnn").start(1, 300, zoneout=0.25)
    stack.init_uniform_(0.0)  # What a step makes is 0.
    y, _ = stack(torch.zeros(3, 40, 1), torch.ones(1, 40, 300))
    assert values(y) == [0.0, 1.0]
    for t in range(3):
        # Standard error: below √(0.25 · 0.75 / 12,000) = 0.004
        assert y[t].mean().item() == pytest.approx(0.25 ** (t + 1), abs=0.016)
    assert (y[1:] <= y[:-1]).all()
    assert not torch.equal(y[0, 0], y[0, 1])


def test_zoneout_in_evaluation_is_its_expected_value() -> None:
    stack = Case("rnn").start(1, 30, zoneout=0.25).eval()
    stack.init_uniform_(0.0)
    y, _ = stack(torch.zeros(3, 4, 1), torch.ones(1, 4, 30))
    assert torch.equal(y, torch.tensor([0.25, 0.25**2, 0.25**3]).view(3, 1, 1).expand(3, 4, 30))


def test_weight_dropout_drops_single_weights_of_every_matrix(case: Case) -> None:
    stack = case.build(3, 40, weight_dropout=0.25)
    program = stack.program(0)
    call = stack.layer_call(0, stack.split_state(None, 2)[0], steps=4, training=True)
    for declared, used, weights in zip(
        program.parameters, call.parameters.values(), stack.layer_parameters(0), strict=True
    ):
        if declared.name not in program.recurrent():
            assert torch.equal(used, weights), declared.name
            continue
        mask = used / weights
        assert values(mask.round(decimals=4)) == [0.0, 1.3333], declared.name
        for dimension in range(mask.dim()):
            assert mask.shape[dimension] == 1 or mask.mean(dimension).std() > 0, declared.name


def test_masks_are_drawn_from_the_lowest_layer_up(case: Case) -> None:
    """A stack of two layers equals two single layers with masks drawn by hand in the documented order."""
    p, q, r, k = 0.4, 0.3, 0.2, 0.1
    stack = case.build(3, 6, 2, dropout=p, state_dropout=q, weight_dropout=r, zoneout=k)
    x = random_input(stack, 4, 5)
    torch.manual_seed(2)
    found, found_last = stack(x)

    torch.manual_seed(2)
    states = stack.split_state(None, 5)

    def drawn(layer: int) -> LayerCall:
        mask = dropout_mask((5, 6), q, like=x)
        named = dict(zip(stack.parameter_shapes(layer), stack.layer_parameters(layer), strict=True))
        for name in stack.program(layer).recurrent():
            named[name] = named[name] * dropout_mask(tuple(named[name].shape), r, like=x)
        kept = dropout_mask((4, 5, 6 * len(stack.state_names)), k, like=x) == 0
        return LayerCall(stack.passes(layer), named, states[layer], mask, kept.double())

    low, _ = reference_layer(x, drawn(0))
    low = low * dropout_mask((4, 5, 6), p, like=x)
    expected, last = reference_layer(low, drawn(1))
    assert torch.equal(found, expected)
    assert all(torch.equal(a[1], b) for a, b in zip(as_tuple(found_last), last, strict=True))


@pairwise(case=CASES, variational=[False, True])
def test_no_dropout_and_eval_mode_draw_nothing_and_change_no_bit(case: Case, variational: bool) -> None:
    def stack_of(p: float) -> RecurrentLayers:
        torch.manual_seed(0)
        return case.build(3, 5, 2, dropout=p, state_dropout=p, weight_dropout=p, variational=variational)

    torch.manual_seed(0)
    plain = case.build(3, 5, 2)
    x = random_input(plain, 4, 2)
    generator_state = torch.get_rng_state()
    expected = plain(x)[0]
    dropping = stack_of(0.5)
    assert not torch.equal(dropping(x)[0], expected)
    for stack in (stack_of(0.0), dropping.eval()):
        torch.set_rng_state(generator_state)
        assert torch.equal(stack(x)[0], expected)
        assert torch.equal(torch.get_rng_state(), generator_state)
