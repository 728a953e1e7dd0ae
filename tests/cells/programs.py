"""Random cells for properties of programs: `cells()` draws them, as recipes that print and can be written down."""

import math
from typing import Any, ClassVar

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from charlm.cells import (
    Cell,
    Parameters,
    exp,
    log,
    maximum,
    minimum,
    normalize,
    relu,
    rms_normalize,
    sigmoid,
    softplus,
    sqrt,
    stop_gradient,
    tanh,
    where,
)
from charlm.cells.cell import trace
from charlm.cells.program import Program, scalarized
from charlm.layers import RecurrentLayers
from charlm.layers.reference import TensorProgram
from tests.cells.on_tensors import step_by_step

Bounded = tuple[Any, float]
"""A value and a bound of its size, so that no value of a random cell grows."""
Instruction = tuple[str, int, int, int]
"""What to compute, and three numbers that choose operands and forms."""

UNARY = {
    "tanh": lambda v, b: (tanh(v), 1.0),
    "sigmoid": lambda v, b: (sigmoid(v), 1.0),
    "softplus": lambda v, b: (softplus(v), b + 0.7),
    "relu": lambda v, b: (relu(v), b),
    "exp": lambda v, b: (exp(minimum(v, 0.9)), math.exp(0.9)),
    "log": lambda v, b: (log(1.3 + sigmoid(v)), 1.0),
    "sqrt": lambda v, b: (sqrt(0.6 + v * v), b + 0.8),
    "rescale": lambda v, b: (1 - v / 2.5, 1 + b / 2.5),
    "normalize": lambda v, b: (normalize(v, 0.1), 3.0),
    "rms_normalize": lambda v, b: (rms_normalize(v, 0.1), 3.0),
    "stop": lambda v, b: (stop_gradient(v), b),
}
BINARY = {
    "add": lambda v, a, w, b: (v + w, a + b),
    "sub": lambda v, a, w, b: (v - w, a + b),
    "mul": lambda v, a, w, b: (v * w, a * b),
    "div": lambda v, a, w, b: (v / (0.7 + sigmoid(w)), a / 0.7),
    "max": lambda v, a, w, b: (maximum(v, w), max(a, b)),
    "min": lambda v, a, w, b: (minimum(v, 0.8 * w), max(a, b)),
    "where": lambda v, a, w, b: (where(v > w, v - w, 0.3 * (w - v)), a + b),  # continuous
    "jump": lambda v, a, w, b: (where(v > w, v, -0.4), max(a, 0.4)),
}
OTHER = ("vector", "gates", "two_products", "layer_norm", "stack", "low_rank", "inputs")


class Drawn(Cell):
    """A cell that follows a recipe: each instruction adds values to those that the next ones choose from."""

    kind: Any = "drawn"
    recipe: tuple[Instruction, ...] = ()

    def step(self, p: Parameters, x: Any, *states: Any) -> Any:
        of_I: list[Bounded] = [(x, 3.0)]
        of_H: list[Bounded] = [(state, 3.0) for state in states] + ([(0.5 * (x + states[0]), 3.0)] if p.square else [])
        from_x = p.product("weight_ih", x) + p.vector("bias_ih")
        of_H.append((tanh(from_x), 1.0))
        for number, (name, i, j, form) in enumerate(self.recipe):
            values = of_I if name != "stack" and form == 0 else of_H
            (v, a), (w, b) = values[i % len(values)], values[j % len(values)]
            if name in UNARY:
                new = [UNARY[name](v, a)]
            elif name in BINARY:
                new = [BINARY[name](v, a, w, b)]
            else:
                new, values = self.other(p, name, v, w, form, f"{name}{number}"), of_H
                values = of_I if name == "inputs" else of_H
            # Newest first, so that small numbers choose what came last.
            values[:0] = [(tanh(value), 1.0) if bound > 4 else (value, bound) for value, bound in new]
        for number, (value, _) in enumerate(of_H[:2]):
            p.note(**{f"g{number}": value})
        chosen = [of_H[number % len(of_H)][0] for number in range(2 * len(states))]
        pairs = zip(states, chosen[::2], chosen[1::2], strict=True)
        after = [h + sigmoid(f) * (tanh(g + from_x) - h) for h, f, g in pairs]
        return after[0] if len(after) == 1 else tuple(after)

    def other(self, p: Parameters, name: str, v: Any, w: Any, form: int, own: str) -> list[Bounded]:
        if name == "vector":
            rate = p.vector(own, of=2, index=form % 2, start=(0.3, None)[form % 2])
            return [(sigmoid(rate) if form == 3 else rate, 1.0)]
        if name == "stack":
            for d in range(2):
                bias = p.vector(f"bias_{own}", 2, index=d, of=2, start=(None, -0.5))
                c, g = p.product(f"weight_{own}", v, 2, index=d, of=2) + bias
                v = v + sigmoid(g) * (tanh(c) - v)
            return [(v, 3.0)]
        if name == "low_rank":
            return [(p.product(f"weight_{own}_left", p.product(f"weight_{own}_right", v, size=2)), 3.0)]
        if name == "inputs":
            return [(2 * sigmoid(p.product(f"weight_{own}", v, size="I")) * p.vector(own, size="I", start=1.0), 2.0)]
        gates = 2 + form % 2
        a = p.product(f"weight_{own}", v, gates) + p.vector(f"bias_{own}", gates)
        if name == "two_products":
            a = a + p.product(f"other_{own}", w, gates)
        if name == "layer_norm":
            a = p.layer_norm(a, own, of=gates, start=0.5)
        one, *rest = tanh(a) if form == 3 else a
        return [(one, 3.0), *((sigmoid(other), 1.0) for other in rest)]


class Drawn2(Drawn):
    states: ClassVar = ("h", "c")


class Drawn3(Drawn):
    states: ClassVar = ("h", "c", "m")
    internal: ClassVar = ("m",)


def cells(*, jumps: bool = True, hidden: int = 4, most: int = 10) -> st.SearchStrategy[Drawn]:
    """Random cells of at most `most` instructions.

    jumps: with functions that are not continuous, and gradients that are stopped. Leave them out where a comparison
    must not depend on rounding, and where finite differences are taken.
    """
    names = [*UNARY, *BINARY, *OTHER]
    names = names if jumps else [name for name in names if name not in ("jump", "stop")]
    operand = st.integers(0, 5)
    recipes = st.lists(
        st.tuples(st.sampled_from(names), operand, operand, st.integers(0, 3)), min_size=1, max_size=most
    )
    kinds = st.sampled_from([Drawn, Drawn2, Drawn3])
    return st.builds(lambda kind, recipe: kind(hidden=hidden, recipe=tuple(recipe)), kinds, recipes)


def drawn(number: int, hidden: int, most: int = 10) -> list[Cell]:
    """The same random cells in every call, without functions that jump; none of the shortest."""
    found: dict[Drawn, None] = {}

    @settings(max_examples=4 * number, derandomize=True, database=None, phases=[Phase.generate], deadline=None)
    @given(cells(jumps=False, hidden=hidden, most=most))
    def draw(cell: Drawn) -> None:
        found[cell] = None

    draw()
    return sorted(found, key=lambda cell: -len(cell.recipe))[:number]


def evaluated(program: Program, parameters: dict[str, Tensor], x: Tensor, states: tuple[Tensor, ...]) -> list[Tensor]:
    """Outputs and last states, by evaluating the whole program at each step."""
    step, outputs = TensorProgram(program, program.results, parameters), []
    for x_BI in x:
        named = dict(zip(program.states, states, strict=True))
        states = tuple(step({"input": x_BI, "state": named}))
        outputs.append(states[0])
    return [torch.stack(outputs), *states]


def assert_program_is_step(cell: Cell, inputs: int, steps: int = 3, streams: int = 2) -> None:
    """The step on tensors, the reference loop, the program and its scalarized form give the same numbers."""
    torch.manual_seed(0)
    layers = RecurrentLayers(cell, inputs).double()
    parameters = {name.removesuffix("_l0"): tensor for name, tensor in layers.named_parameters()}
    x = torch.randn(steps, streams, inputs, dtype=torch.float64)
    states = tuple(torch.randn(streams, cell.hidden, dtype=torch.float64).tanh() for _ in cell.states)

    outputs, last = step_by_step(layers, x, states)
    expected = [outputs, *last]

    program = trace(cell, inputs == cell.hidden)
    first = tuple(state[None] for state in states)
    y, last = layers.forward_reference(x, first)
    assert y.isfinite().all()
    for found in (
        [y, *(tensor[0] for tensor in last)],
        evaluated(program, parameters, x, states),
        evaluated(scalarized(program), parameters, x, states),
    ):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
