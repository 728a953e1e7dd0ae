"""Random cells for properties of programs, as recipes that print and can be written down."""

import math
from random import Random
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

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
OTHER = ("vector", "gates", "two_products", "layer_norm", "stack", "low_rank", "inputs", "antisymmetric", "cumulative")


class Drawn(Cell):
    """A cell that follows a recipe: each instruction adds values to those that the next ones choose from."""

    recipe: tuple[Instruction, ...] = ()

    def step(self, p: Parameters, x: Any, *states: Any) -> Any:
        of_I: list[Bounded] = [(x, 3.0)]
        of_H: list[Bounded] = [(state, 3.0) for state in states] + ([(0.5 * (x + states[0]), 3.0)] if p.square else [])
        from_x = p.product("weight_ih", x) + p.vector("bias_ih")
        of_H.append((tanh(from_x), 1.0))
        for number, (name, i, j, form) in enumerate(self.recipe):
            values = of_I if name not in ("stack", "antisymmetric", "cumulative") and form == 0 else of_H
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
        if name == "antisymmetric":
            return [(p.product(f"weight_{own}", v) - p.transposed(f"weight_{own}", w), 3.0)]
        if name == "cumulative":
            ones = np.tril(np.full((self.hidden, self.hidden), 1 / self.hidden))
            rates = p.vector(f"rate_{own}", start=np.linspace(0.3, 1.0, self.hidden), fixed=form == 3)
            return [(p.product(f"weight_{own}", v, start=ones, fixed=form < 2) * rates, 3.0)]
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


KINDS = (Drawn, Drawn2, Drawn3)
NAMES = (*UNARY, *BINARY, *OTHER)
CONTINUOUS = tuple(name for name in NAMES if name not in ("jump", "stop"))
"""Without functions that jump, and gradients that are stopped: where a comparison must not depend on rounding."""


def cells() -> st.SearchStrategy[Drawn]:
    """Random cells."""
    operand = st.integers(0, 5)
    instruction = st.tuples(st.sampled_from(NAMES), operand, operand, st.integers(0, 3))
    recipes = st.lists(instruction, min_size=1, max_size=10)
    return st.builds(lambda kind, recipe: kind(hidden=4, recipe=tuple(recipe)), st.sampled_from(KINDS), recipes)


def drawn(number: int, hidden: int, most: int = 10) -> list[Cell]:
    """The same continuous cells in every call, none of the shortest."""
    return [_random_cell(Random(seed), hidden, most) for seed in range(number)]


def _random_cell(random: Random, hidden: int, most: int) -> Drawn:
    recipe = []
    for _ in range(random.randint(most // 2, most)):
        recipe.append((random.choice(CONTINUOUS), random.randrange(6), random.randrange(6), random.randrange(4)))
    return random.choice(KINDS)(hidden=hidden, recipe=tuple(recipe))
