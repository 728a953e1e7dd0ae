"""The fused CPU kernels: threads, memory, values that are not finite, and random cells.

`test_against_reference.py` holds what they compute to the reference.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from charlm.cells import Cell, exp, maximum, minimum, relu, tanh, where
from charlm.cells.derivative import passes_of
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
    forward, resets_TB = by_kernel(stack), resets_of(6, 9)
    first = run(seeded(forward, resets_TB), stack, x, state)
    other, _ = forward(x[:2] * 3, state)
    other.sum().backward()
    again = run(seeded(forward, resets_TB), stack, x, state)
    assert all(torch.equal(again[name], tensor) for name, tensor in first.items())
    with torch.no_grad():
        assert torch.equal(forward(x, state, resets_TB)[0], first["y"])


def test_numbers_that_are_not_finite(case):
    stack = case.build(3, 20, state=0.4, zoneout=0.3).float()
    with torch.no_grad():
        [*stack.layer_parameters(0).values()][1].view(-1)[0] = torch.nan
    x = torch.full((2, 3, 3), torch.inf)
    y, _ = by_kernel(stack.eval())(x)
    reference, _ = stack.forward_reference(x)
    assert torch.equal(y.isfinite(), reference.isfinite())
    assert y.isnan().any()


class Calls(torch.nn.Module):
    """A model of users: calls `layers.forward` or `layers.forward_reference`."""

    def __init__(self, layers: RecurrentLayers, way: str) -> None:
        super().__init__()
        self.layers = layers
        self.call = getattr(layers, way)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.call(2 * x)
        return y.sin()


def dual(model: Calls, x: Tensor) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(x, x))).tangent


def second_derivative(model: Calls, x: Tensor) -> Tensor:
    (dx,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return torch.autograd.grad(dx.sum(), x)[0]


def fx(model: Calls, x: Tensor) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx  # which takes time

    return make_fx(model)(x)


# What PyTorch does with a function, and the name of it in the error.
TRANSFORMS: dict[str, tuple[str, Callable[[Calls, Tensor], Any]]] = {
    "vmap": ("a transform of torch.func", lambda model, x: torch.func.vmap(model)(x[None])),
    "grad": ("a transform of torch.func", lambda model, x: torch.func.grad(lambda x: model(x).sum())(x)),
    "jvp": ("a transform of torch.func", lambda model, x: torch.func.jvp(model, (x,), (x,))),
    "dual numbers": ("forward-mode derivatives", dual),
    "second derivatives": ("second derivatives", second_derivative),
    "vectorized gradients": (
        "vectorized gradients",
        lambda model, x: torch.autograd.functional.jacobian(model, x, vectorize=True),
    ),
    "torch.jit.trace": ("torch.jit.trace", torch.jit.trace),
    "torch.export": ("torch.export", lambda model, x: torch.export.export(model, (x,))),
    "make_fx": ("torch.export or make_fx", fx),
}


@pytest.mark.filterwarnings("ignore")  # torch.jit is deprecated, and tracers warn of the loop over steps
@pytest.mark.parametrize(("found", "transform"), TRANSFORMS.values(), ids=TRANSFORMS)
def test_what_transforms_and_second_derivatives_are_left_to_the_reference(found, transform):
    layers, x = Case("lstm").build(3, 5).float(), torch.randn(3, 2, 3, requires_grad=True)
    assert transform(Calls(layers, "forward_reference"), x) is not None
    with pytest.raises(RuntimeError, match=rf"^charlm's kernels: found {found}.*; allowed: .*forward_reference"):
        transform(Calls(layers, "forward"), x)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of torch.compile, which asks for it
def test_the_layers_are_called_between_the_graphs_of_torch_compile():
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(graph.code)
        return graph.forward

    layers, x = Case("lstm").build(3, 5).float(), torch.randn(6, 2, 3)
    model = Calls(layers, "forward")
    compiled = torch.compile(model, backend=backend)
    for T in range(2, 7):
        assert torch.equal(compiled(x[:T]), model(x[:T]))
    assert len(graphs) == 4  # 2 x and the sine, of two steps and of any number
    with pytest.raises(RuntimeError, match=r"reason: charlm's kernels: found .*forward_reference"):
        torch.compile(model, backend="eager", fullgraph=True)(x)
    by_reference = Calls(layers, "forward_reference")
    torch.testing.assert_close(torch.compile(by_reference, backend="eager", fullgraph=True)(x), model(x))


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
    x, zeros = torch.randn(5, 2, 4), ties.initial_state(2)
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
    library = CpuDriver(
        "own", tuple(passes_of(stack.forms[0].program, stack.options(training=True)) for stack in stacks)
    )
    with mock.patch("charlm.layers.selection.CpuDriver", return_value=library):
        for stack in stacks:
            try:
                hold_to_the_rule(stack, 4, 5, lambda stack: stack)
            except AssertionError as error:
                raise AssertionError(f"{stack.cell!r}: {error}") from error
