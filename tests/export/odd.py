"""Cells that charlm does not have."""

from typing import Any, ClassVar

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


class Odd(Cell):
    """Every operation of a program, and several products in the loop.

    Like the Mogrifier (Melis et al. 2020) it multiplies the input by a gate of the state, so that the products of the
    input are inside the loop, too. Nothing in it jumps, so that rounding makes little difference.
    """

    # Names that an export could confuse: see also the parameters y and constructor.
    states: ClassVar = ("y", "logits", "new_y")
    internal: ClassVar = ("new_y",)

    def step(self, p: Parameters, x: Any, y: Any, other: Any, norm: Any) -> Any:
        gate = 2 * sigmoid(p.product("q", y, size="I") + p.vector("q_bias", size="I"))
        seen = rms_normalize(gate * x, 1e-3)
        gains = [1 + 0.5 * unit / self.hidden for unit in range(self.hidden)]
        plain = p.product("plain", x, 2) * p.vector("plain_gain", start=gains, fixed=True)  # one vector for both
        stacked = normalize(plain + p.product("turn", seen, 2) + p.vector("turn_bias", 2))
        a, b = stacked * p.vector("y", of=2, start=(1.0, 0.5)) + p.product("back", y, 2, index=1, of=2)
        first, _ = p.vector("rows", 2, index=1, of=3)
        small = p.product("narrow", maximum(a, -0.5), size=5)
        wide = p.transposed("narrow", tanh(small) + p.vector("constructor", size=5))
        rate = p.vector("rate", start=0.3)
        slope = a - 0.1 * b
        leaky = where(slope > 0, slope, rate * slope) + (b > first) * (b - first)
        decay = 1 / (1 + softplus(b) + exp(minimum(a, 1.0)))
        fresh = decay * other + (1 - decay) * minimum(leaky, 3.0)
        norm = stop_gradient(0.9 * norm + sqrt(1 + relu(wide)))
        p.note(decay=decay)
        p.show(leaky=leaky, new_y=log(norm + 1))
        return tanh(fresh / maximum(norm, rate)) - 0.1 * p.product("back", fresh, 2, index=0, of=2)[1], -fresh, norm


class Deep(Cell):
    """Two chains of operations, one of parameters alone, longer than Python's recursion goes."""

    def step(self, p: Parameters, x: Any, h: Any) -> Any:
        fixed, a = p.vector("bias"), p.product("weight_ih", x) + p.product("weight_hh", h)
        for _ in range(400):
            fixed = tanh(fixed + 0.1)
            a = tanh(a) + fixed
        return a
