"""The fused CPU kernels: threads, memory, values that are not finite, and random cells.

`test_against_reference.py` holds what they compute to the reference.
"""

from collections.abc import Sequence
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch

from charlm.cells import Cell, exp, maximum, minimum, relu, tanh, where
from charlm.layers import RecurrentLayers
from charlm.native.recurrence import CpuDriver
from tests.cells.measure import (
    Case,
    assert_equal_runs,
    by_kernel,
    by_step,
    hold_to_the_rule,
    in_dtype_of,
    layers_of,
    random_input,
    random_state,
    resets_of,
    run,
    seeded,
)
from tests.cells.programs import drawn

pytestmark = pytest.mark.usefixtures("needs_kernels")


def test_results_depend_on_nothing_but_the_arguments(case, threads):
    """Not on calls before or in between, nor on whether there are gradients."""
    threads(3)
    stack = case.build(5, 70, 2, zoneout=0.3).eval()
    x, state = random_input(stack, 6, 9), random_state(stack, 9)
    stack = stack.float()
    x, state = in_dtype_of(stack, x, state)
    resets_TB = resets_of(6, 9)
    first = run(seeded(stack, resets_TB), stack, x, state)
    other, _ = stack(x[:2] * 3, state)
    other.sum().backward()
    again = run(seeded(stack, resets_TB), stack, x, state)
    assert all(torch.equal(again[name], tensor) for name, tensor in first.items())
    with torch.no_grad():
        assert torch.equal(stack(x, state, resets_TB)[0], first["y"])


def test_numbers_that_are_not_finite(case):
    stack = case.build(3, 20, state=0.4, zoneout=0.3).float()
    with torch.no_grad():
        [*stack.layer_parameters(0).values()][1].view(-1)[0] = torch.nan
    x = torch.full((2, 3, 3), torch.inf)
    y, _ = stack.eval()(x)
    reference, _ = stack.forward_reference(x)
    assert torch.equal(y.isfinite(), reference.isfinite())
    assert y.isnan().any()


def test_what_transforms_and_second_derivatives_are_left_to_the_reference():
    layers, x = Case("lstm").build(3, 5).float(), torch.randn(2, 2, 1, 3, requires_grad=True)
    y, _ = torch.func.vmap(layers.forward_reference)(x)
    torch.testing.assert_close(y[1], layers(x[1])[0])
    with pytest.raises(RuntimeError, match=r"^charlm's kernels: found a transform of torch.func; allowed: "):
        torch.func.vmap(layers)(x)
    y, _ = layers(x[0])
    with pytest.raises(RuntimeError, match=r"^charlm's kernels: found second derivatives; allowed: "):
        torch.autograd.grad(y.sum(), x, create_graph=True)


# Cells of these tests, in one library

OPTIONS: list[dict[str, Any]] = [{}, {"state": 0.3}, {"zoneout": 0.3}, {"weights": 0.2}]
HIDDEN = 19


class Ties(Cell):
    """A step whose branches meet wherever a state is 0."""

    states: ClassVar = ("h", "c", "e", "b")

    def step(self, p: Any, x: Any, h: Any, c: Any, e: Any, b: Any) -> Any:
        a = p.linear(x, h)
        m = maximum(20 * a - 190, -200.0)  # which its exponential and something else read
        rectified = tanh(maximum(c, 0.0) + maximum(c, h) - minimum(h, 0.0))
        elu = 0.5 * where(e > 0, e, exp(minimum(e, 0.0)) - 1) + tanh(a)
        return rectified, relu(a), elu, tanh(exp(m) + 0.001 * m + b)


def test_gradients_where_branches_meet():
    """The kernels choose as PyTorch does."""
    ties = RecurrentLayers(Ties(hidden=9), 4)
    x, zeros = torch.randn(5, 2, 4), ties.zero_state(2)
    expected = run(ties.forward_reference, ties, x, zeros)
    for forward in (by_kernel(ties), by_step(ties)):
        assert_equal_runs(run(forward, ties, x, zeros), expected, tolerance=2e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("poison")
def test_kernels_of_random_cells(threads):
    threads(2)
    hold_kernels_to_the_rule(drawn(2, HIDDEN, most=7))


def hold_kernels_to_the_rule(cells: Sequence[Cell]) -> None:
    """Each in one layer, by one library. Every second cell has as many inputs as units."""
    stacks = []
    for number, cell in enumerate(cells):
        torch.manual_seed(number)
        stack = layers_of(cell, (7, HIDDEN)[number % 2], **OPTIONS[number // 2 % len(OPTIONS)]).double()
        with torch.no_grad():
            for parameter in stack.parameters():
                parameter += 0.2 * torch.randn_like(parameter)
        stacks.append(stack)
    library = CpuDriver("own", tuple(stack.passes(0) for stack in stacks))
    with mock.patch.object(RecurrentLayers, "cpu_driver", library):
        for stack in stacks:
            try:
                hold_to_the_rule(stack, 4, 5)
            except AssertionError as error:
                raise AssertionError(f"{stack.cell!r}: {error}") from error
