"""What a micro-step computes besides its product, in one Triton kernel forward and one backward.

The equations are those of the kind's gates.py, compiled by Triton.
"""

# Triton turns the numbers that a kernel is called with into its own types.
# pyright: reportArgumentType=false, reportMissingImports=false, reportGeneralTypeIssues=false

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from charlm.gpu.recurrence import Steps, Window

_BLOCK = 256


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    return 2 * sigmoid(2 * x) - 1


@triton.jit
def log_sigmoid(x):
    return tl.minimum(x, 0.0) - tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def maximum(x, y):
    return tl.maximum(x, y)


@triton.jit
def where(condition, x, y):
    return tl.where(condition, x, y)


_NAMES = {function.__name__: function for function in (sigmoid, tanh, log_sigmoid, exp, maximum, where)}
"""In place of the functions of equations.py."""


@functools.cache
def compiled(function: Callable[..., Any]) -> Any:
    """A function of a gates.py as a Triton function; so are those that it calls."""
    assert isinstance(function, types.FunctionType)
    names = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
    names = {name: _NAMES.get(name) or compiled(value) for name, value in names.items()}
    # The interpreter wants to see `tl`.
    names |= {"tl": tl}
    copy = types.FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return triton.jit(copy)


@triton.jit
def load_rows(start, COUNT: tl.constexpr, stride, at, inside):
    """A tuple of COUNT vectors, `stride` elements apart."""
    rows = ()
    for k in tl.static_range(COUNT):
        rows = rows + (tl.load(start + k * stride + at, inside, other=0.0),)  # noqa: RUF005
    return rows


# fmt: off
@triton.jit
def forward_step(
    sums,    # [B, G·H]: R h
    added, added_row,    # W x + b, or biases: a row for each stream, `added_row` elements apart (0: the same for all)
    apart_biases,    # [APART·H], or null
    before, before_stride,    # [S, B, H], `before_stride` elements from one state to the next
    after, after_stride,    # written, likewise
    saved,    # [B, K, H], written
    made, made_stride,    # [S, B, H], written: the states before zoneout; or null
    kept, kept_row,    # [B or 1, S·H]: zoneout's share of the states before the step; or null
    first, first_stride,    # [S, B, H]: these states
    B, H,
    FORWARD: tl.constexpr, G: tl.constexpr, S: tl.constexpr, K: tl.constexpr, APART: tl.constexpr, ZONES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # fmt: on
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # of [B, H]
    inside = at < B * H
    b, u = at // H, at % H
    # The arguments of the gates; those of gates that stay apart are W x + b first, and R h + b at the end.
    maps = load_rows(added, G, H, b * added_row + u, inside)
    products = load_rows(sums, G, H, b * G * H + u, inside)
    together = ()
    for k in tl.static_range(G):
        together = together + ((maps[k] + products[k] if k < G - APART else maps[k]),)  # noqa: RUF005
    for k in tl.static_range(APART):
        bias = tl.load(apart_biases + k * H + u, inside, other=0.0)
        together = together + (products[G - APART + k] + bias,)  # noqa: RUF005
    old = load_rows(before, S, before_stride, at, inside)
    new, kept_back = FORWARD(together, old)
    for k in tl.static_range(K):
        tl.store(saved + (b * K + k) * H + u, kept_back[k], inside)
    for s in tl.static_range(S):
        value = new[s]
        if ZONES:
            tl.store(made + s * made_stride + at, value, inside)
            share = tl.load(kept + b * kept_row + s * H + u, inside, other=0.0)
            value = share * tl.load(first + s * first_stride + at, inside, other=0.0) + (1 - share) * value
        tl.store(after + s * after_stride + at, value, inside)


# fmt: off
@triton.jit
def backward_step(
    through,    # [B, H]: gradient of h after the micro-step through the next product
    mask,    # [B, H]: multiplies it; or null
    d_outputs,    # [B, H]: gradient of the outputs; or null
    direct,    # [S, B, H]: gradients of the states after it otherwise; written: of those before it
    bypass,    # [S, B, H]: their part that bypasses the step because of zoneout; or null
    before, before_stride, after, after_stride,    # the states, `after` without zoneout
    saved,    # [B, K, H]
    kept, kept_row,
    d_maps,    # [B, G·H], written: gradient of R h + b
    d_inputs,    # [B, G·H], written: gradient of W x + b; null if no gate stays apart
    B, H,
    BACKWARD: tl.constexpr, G: tl.constexpr, S: tl.constexpr, K: tl.constexpr, APART: tl.constexpr,
    DIRECT: tl.constexpr,    # bit s: whether state s is direct
    MASKED: tl.constexpr, LAST: tl.constexpr,    # whether the last micro-step of a step
    ZONES: tl.constexpr,    # bit 0: zoneout follows this micro-step; bit 1: its bypass ends before it
    BLOCK: tl.constexpr,
):
    # fmt: on
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < B * H
    b, u = at // H, at % H
    d = load_rows(direct, S, B * H, at, inside)
    d_h = tl.load(through + at, inside, other=0.0)
    if MASKED:
        d_h *= tl.load(mask + at, inside, other=0.0)
    if LAST:
        d_h += tl.load(d_outputs + at, inside, other=0.0)
    d_after = ()
    for s in tl.static_range(S):
        value = d[s]
        if s == 0:
            value += d_h
        if ZONES & 1:
            share = tl.load(kept + b * kept_row + s * H + u, inside, other=0.0)
            tl.store(bypass + s * B * H + at, share * value, inside)
            value = (1 - share) * value
        d_after = d_after + (value,)  # noqa: RUF005
    old = load_rows(before, S, before_stride, at, inside)
    new = load_rows(after, S, after_stride, at, inside)
    gates, d_direct = BACKWARD(old, new, load_rows(saved, K, H, b * K * H + u, inside), d_after)
    for k in tl.static_range(G):
        if k < G - APART:
            tl.store(d_maps + (b * G + k) * H + u, gates[k], inside)
        else:
            tl.store(d_maps + (b * G + k) * H + u, gates[k + APART], inside)
        if APART > 0:
            tl.store(d_inputs + (b * G + k) * H + u, gates[k], inside)
    for s in tl.static_range(S):
        value = tl.zeros_like(d_h)
        if (DIRECT >> s) & 1:
            # States that are not direct come first, so the others lie S − (their number) further on.
            value = d_direct[s - S + len(d_direct)]
        if ZONES & 2:
            value += tl.load(bypass + s * B * H + at, inside, other=0.0)
        tl.store(direct + s * B * H + at, value, inside)


class TritonSteps(Steps):
    """`Steps` by the kernels above, for cells without layer normalization."""

    def __init__(self, w: Window) -> None:
        super().__init__(w)
        if w.d_last is not None:
            self._d_states = w.d_last.clone(memory_format=torch.contiguous_format)
            self._bypass = torch.empty_like(self._d_states) if w.kept is not None else None

    def forward(self, t: int, d: int, sums_BG: Tensor) -> None:
        w, e = self.w, self.w.equations
        B, H = w.states.shape[-2:]
        added = w.inputs[t] if d == 0 else w.biases[d]  # type: ignore[index]
        biases = w.biases.view(-1)[(e.gates - e.apart) * H :] if e.apart else None  # type: ignore[union-attr]
        before, before_stride = self._states(t, d)
        after, after_stride = self._states_after(t, d)
        zones = w.zones_out(d)
        made, made_stride = self._made(t) if zones else (None, 0)
        kept, kept_row = self._kept(t) if zones else (None, 0)
        forward_step[_grid(B, H)](
            sums_BG, added, e.gates * H if d == 0 else 0, biases, before, before_stride, after, after_stride,
            w.saved[d, w.row(t)], made, made_stride, kept, kept_row, *self._states(t, 0), B, H,
            FORWARD=compiled(e.forward), G=e.gates, S=len(w.states), K=e.saved, APART=e.apart, ZONES=zones,
            BLOCK=_BLOCK,
        )  # fmt: skip

    def backward(self, t: int, d: int, through_BH: Tensor) -> None:
        w, e = self.w, self.w.equations
        B, H = w.states.shape[-2:]
        zones = w.zones_out(d)
        before, before_stride = self._states(t, d)
        after, after_stride = self._made(t) if zones else self._states_after(t, d)
        kept, kept_row = self._kept(t) if zones else (None, 0)
        last = d == w.D - 1
        backward_step[_grid(B, H)](
            through_BH, w.mask, w.d_outputs[t] if last else None, self._d_states, self._bypass,  # type: ignore[index]
            before, before_stride, after, after_stride, w.saved[d, w.row(t)], kept, kept_row,
            w.d_maps[d, t], w.d_inputs[t] if e.apart else None, B, H,  # type: ignore[index]
            BACKWARD=compiled(e.backward), G=e.gates, S=len(w.states), K=e.saved, APART=e.apart,
            DIRECT=sum(is_direct << s for s, is_direct in enumerate(e.direct)), MASKED=w.mask is not None, LAST=last,
            ZONES=zones + 2 * (w.kept is not None and d == 0), BLOCK=_BLOCK,
        )  # fmt: skip

    def finish(self, through_BH: Tensor) -> None:
        self._direct = list(self._d_states.unbind())
        super().finish(through_BH)

    def _states(self, t: int, d: int) -> tuple[Tensor, int]:
        """The states before micro-step (t, d): the first, and the distance to the next in elements."""
        w = self.w
        return (w.states[0, t], w.states.stride(0)) if d == 0 else (w.inner[d - 1, w.row(t)], 0)

    def _states_after(self, t: int, d: int) -> tuple[Tensor, int]:
        return self._states(t, d + 1) if d + 1 < self.w.D else self._states(t + 1, 0)

    def _made(self, t: int) -> tuple[Tensor, int]:
        w = self.w
        return w.made[0, w.row(t)], w.made.stride(0)  # type: ignore[index, union-attr]

    def _kept(self, t: int) -> tuple[Tensor, int]:
        kept_BS = self.w.kept[t % len(self.w.kept)]  # type: ignore[index, arg-type]
        return kept_BS, kept_BS.stride(0) if len(kept_BS) > 1 else 0


def _grid(B: int, H: int) -> tuple[int]:
    return (triton.cdiv(B * H, _BLOCK),)
