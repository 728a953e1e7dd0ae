"""Gradients where two branches of a step meet: charlm's kernels choose as PyTorch does."""

from typing import Any, ClassVar

import pytest
import torch
from torch.nn import functional as F

from charlm.cells import Cell, exp, maximum, minimum, relu, tanh
from charlm.layers import RecurrentLayers, as_tuple
from charlm.layers.on_tensors import step_by_step


class ElU(Cell):
    """The exponential of a minimum, at whose bound a state of zeros lies."""

    def step(self, p: Any, x: Any, h: Any) -> Any:
        return 0.5 * F.elu(h) + tanh(p.linear(x, h))


class Rectified(Cell):
    """A maximum of two equal numbers, wherever the state is 0."""

    states: ClassVar = ("h", "c")

    def step(self, p: Any, x: Any, h: Any, c: Any) -> Any:
        return tanh(maximum(c, 0.0) + maximum(c, h) - minimum(h, 0.0)), relu(p.linear(x, h))


class Bounded(Cell):
    """A maximum that its exponential and something else read."""

    def step(self, p: Any, x: Any, h: Any) -> Any:
        m = maximum(20 * p.linear(x, h) - 190, -200.0)
        return tanh(exp(m) + 0.001 * m + h)


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize("kind", [ElU, Rectified, Bounded])
def test_gradients_from_a_state_of_zeros(kind: type[Cell]) -> None:
    stack = RecurrentLayers(kind(hidden=9), 4)
    x = torch.randn(5, 2, 4, requires_grad=True)

    def gradients(found: Any) -> list[Any]:
        y, last = found
        total = y.sum() + sum(part.square().sum() for part in as_tuple(last))
        return list(torch.autograd.grad(total, [x, *stack.parameters()]))

    assert stack.select_backend("cpu").backend.name == "fused CPU kernel"
    zeros = tuple(part[0] for part in as_tuple(stack.zero_state(2)))
    expected = gradients(stack.forward_reference(x))
    for found in (gradients(stack(x)), gradients(step_by_step(stack, x, zeros))):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)
