"""What a micro-step computes besides its product, in one Triton kernel forward and one backward.

The equations are those of the kind's gates.py, compiled by Triton. Layer normalization: normalized.py.
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

AS_WRITTEN = {"enable_fp_fusion": False}
"""Options of all kernels: no fused multiply-adds, with which a·b − a·b need not be 0."""


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
    # 2^(a + b), with a = x log₂ e, rounded, and b what that lacks; log₂ e is 1.442695… in float32 and a rest. Without b
    # the result errs the more, the larger |x| is: for the values of σ and tanh that does not matter.
    a = x * 1.4426950408889634
    b = tl.fma(x, 1.4426950408889634, -a) + x * 1.9259630335e-8
    return tl.where(tl.abs(x) < 80.0, tl.exp2(a) * (1 + b * 0.6931471805599453), tl.exp(x))


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


@triton.jit
def store_rows(start, rows, COUNT: tl.constexpr, stride, at, inside):
    for k in tl.static_range(COUNT):
        tl.store(start + k * stride + at, rows[k], inside)


# fmt: off
@triton.jit
def put_states(
    new, after, after_stride, made, made_stride, kept, share_at, first, first_stride, operand, mask, at, H, inside,
    S: tl.constexpr, ZONES: tl.constexpr, COPIED: tl.constexpr, MASKED: tl.constexpr,
):
    # fmt: on
    """Store the states after a micro-step, with zoneout if it follows. The arguments are those of `forward_step`."""
    for s in tl.static_range(S):
        value = new[s]
        if ZONES:
            tl.store(made + s * made_stride + at, value, inside)
            share = tl.load(kept + s * H + share_at, inside, other=0.0)
            value = share * tl.load(first + s * first_stride + at, inside, other=0.0) + (1 - share) * value
        tl.store(after + s * after_stride + at, value, inside)
        if COPIED and s == 0:
            if MASKED:
                value *= tl.load(mask + at, inside, other=0.0)
            tl.store(operand + at, value, inside)


# fmt: off
@triton.jit
def gradients_after(
    through, mask, d_outputs, direct, bypass, kept, share_at, at, stride, H, inside,
    S: tl.constexpr, MASKED: tl.constexpr, LAST: tl.constexpr, ZONES: tl.constexpr,
):
    # fmt: on
    """The gradient of each state after a micro-step, without zoneout, whose bypass is stored.

    The arguments are those of `backward_step`; stride: from one state to the next.
    """
    d_h = tl.load(through + at, inside, other=0.0)
    if MASKED:
        d_h *= tl.load(mask + at, inside, other=0.0)
    if LAST:
        d_h += tl.load(d_outputs + at, inside, other=0.0)
    d_after = ()
    for s in tl.static_range(S):
        value = tl.load(direct + s * stride + at, inside, other=0.0)
        if s == 0:
            value += d_h
        if ZONES & 1:
            share = tl.load(kept + s * H + share_at, inside, other=0.0)
            tl.store(bypass + s * stride + at, share * value, inside)
            value = (1 - share) * value
        d_after = d_after + (value,)  # noqa: RUF005
    return d_after


# fmt: off
@triton.jit
def put_direct(
    direct, d_direct, d_after, bypass, at, stride, inside, S: tl.constexpr, DIRECT: tl.constexpr, ZONES: tl.constexpr
):
    # fmt: on
    """Store the gradients of the states before a micro-step other than through its product."""
    for s in tl.static_range(S):
        value = tl.zeros_like(d_after[s])
        if (DIRECT >> s) & 1:
            # States that are not direct come first, so the others lie S − (their number) further on.
            value = d_direct[s - S + len(d_direct)]
        if ZONES & 2:
            value += tl.load(bypass + s * stride + at, inside, other=0.0)
        tl.store(direct + s * stride + at, value, inside)


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
    operand,    # [B, H], written: the left operand of the next product, h times the mask in any dtype; or null
    mask,    # [B, H]; or null
    B, H,
    FORWARD: tl.constexpr, G: tl.constexpr, S: tl.constexpr, K: tl.constexpr, APART: tl.constexpr, ZONES: tl.constexpr,
    COPIED: tl.constexpr, MASKED: tl.constexpr,    # whether there is an `operand`, and a mask
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
    store_rows(saved, kept_back, K, H, b * K * H + u, inside)
    share_at = b * kept_row + u
    put_states(
        new, after, after_stride, made, made_stride, kept, share_at, first, first_stride, operand, mask, at, H, inside,
        S, ZONES, COPIED, MASKED,
    )  # fmt: skip


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
    d_operand,    # [B, G·H], written: d_maps in another dtype, the left operand of the next product; or null
    B, H,
    BACKWARD: tl.constexpr, G: tl.constexpr, S: tl.constexpr, K: tl.constexpr, APART: tl.constexpr,
    DIRECT: tl.constexpr,    # bit s: whether state s is direct
    COPIED: tl.constexpr, MASKED: tl.constexpr,    # whether there is a `d_operand`, and a mask
    LAST: tl.constexpr,    # whether the last micro-step of a step
    ZONES: tl.constexpr,    # bit 0: zoneout follows this micro-step; bit 1: its bypass ends before it
    BLOCK: tl.constexpr,
):
    # fmt: on
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < B * H
    b, u = at // H, at % H
    share_at = b * kept_row + u
    d_after = gradients_after(
        through, mask, d_outputs, direct, bypass, kept, share_at, at, B * H, H, inside, S, MASKED, LAST, ZONES
    )
    old = load_rows(before, S, before_stride, at, inside)
    new = load_rows(after, S, after_stride, at, inside)
    gates, d_direct = BACKWARD(old, new, load_rows(saved, K, H, b * K * H + u, inside), d_after)
    for k in tl.static_range(G):
        d_map = gates[k if k < G - APART else k + APART]
        tl.store(d_maps + (b * G + k) * H + u, d_map, inside)
        if COPIED:
            tl.store(d_operand + (b * G + k) * H + u, d_map, inside)
        if APART > 0:
            tl.store(d_inputs + (b * G + k) * H + u, gates[k], inside)
    put_direct(direct, d_direct, d_after, bypass, at, B * H, inside, S, DIRECT, ZONES)


class TritonSteps(Steps):
    """`Steps` by the kernels above, for cells without layer normalization; normalized.py has the others."""

    BF16 = torch.bfloat16  # of the operands that the kernels write; tests replace it

    def __init__(self, w: Window) -> None:
        super().__init__(w)
        self._operand = self._d_operand = None
        dtype = self.BF16 if w.bf16 else w.states.dtype
        if w.d_last is not None:
            self._d_states = w.d_last.clone(memory_format=torch.contiguous_format)
            self._bypass = torch.empty_like(self._d_states) if w.kept is not None else None
            if w.bf16:
                self._d_operand = torch.empty_like(w.d_maps[0, 0], dtype=dtype)  # type: ignore[index]
        elif w.bf16 or w.mask is not None:
            self._operand = w.masked(w.states[0, 0]).to(dtype, copy=True)

    def operand(self, t: int, d: int) -> Tensor:
        return self.w.before(t, d)[0] if self._operand is None else self._operand

    def d_operand(self, t: int, d: int) -> Tensor:
        return super().d_operand(t, d) if self._d_operand is None else self._d_operand

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
            w.saved[d, w.row(t)], made, made_stride, kept, kept_row, *self._states(t, 0), self._operand, w.mask, B, H,
            FORWARD=compiled(e.forward), G=e.gates, S=len(w.states), K=e.saved, APART=e.apart, ZONES=zones,
            COPIED=self._operand is not None, MASKED=w.mask is not None, BLOCK=_BLOCK,
            **AS_WRITTEN,
        )  # fmt: skip

    def backward(self, t: int, d: int, through_BH: Tensor) -> None:
        w, e = self.w, self.w.equations
        B, H = w.states.shape[-2:]
        zones, last = w.zones_out(d), d == w.D - 1
        before, before_stride = self._states(t, d)
        after, after_stride = self._after_made(t, d)
        kept, kept_row = self._kept(t) if zones else (None, 0)
        backward_step[_grid(B, H)](
            through_BH, w.mask, w.d_outputs[t] if last else None, self._d_states, self._bypass,  # type: ignore[index]
            before, before_stride, after, after_stride, w.saved[d, w.row(t)], kept, kept_row,
            w.d_maps[d, t], w.d_inputs[t] if e.apart else None, self._d_operand, B, H,  # type: ignore[index]
            BACKWARD=compiled(e.backward), G=e.gates, S=len(w.states), K=e.saved, APART=e.apart,
            DIRECT=bits(e.direct), COPIED=self._d_operand is not None, MASKED=w.mask is not None, LAST=last,
            ZONES=zones + 2 * (w.kept is not None and d == 0), BLOCK=_BLOCK,
            **AS_WRITTEN,
        )  # fmt: skip

    def reset(self, t: int) -> None:
        super().reset(t)
        carried_B1 = self.w.carried_to(t + 1)
        if self._operand is not None and carried_B1 is not None:
            self._operand *= carried_B1

    def reset_back(self, carried_B1: Tensor) -> None:
        self._d_states *= carried_B1

    def finish(self, through_BH: Tensor) -> None:
        self._direct = list(self._d_states.unbind())
        super().finish(through_BH)

    def _states(self, t: int, d: int) -> tuple[Tensor, int]:
        """The states before micro-step (t, d): the first, and the distance to the next in elements."""
        w = self.w
        return (w.states[0, t], w.states.stride(0)) if d == 0 else (w.inner[d - 1, w.row(t)], 0)

    def _states_after(self, t: int, d: int) -> tuple[Tensor, int]:
        return self._states(t, d + 1) if d + 1 < self.w.D else self._states(t + 1, 0)

    def _after_made(self, t: int, d: int) -> tuple[Tensor, int]:
        """The states after micro-step (t, d), without zoneout and resets."""
        last = self.w.made is not None and d == self.w.D - 1
        return self._made(t) if last else self._states_after(t, d)

    def _made(self, t: int) -> tuple[Tensor, int]:
        w = self.w
        return w.made[0, w.row(t)], w.made.stride(0)  # type: ignore[index, union-attr]

    def _kept(self, t: int) -> tuple[Tensor, int]:
        kept_BS = self.w.kept[t % len(self.w.kept)]  # type: ignore[index, arg-type]
        return kept_BS, kept_BS.stride(0) if len(kept_BS) > 1 else 0


def bits(flags: tuple[bool, ...]) -> int:
    """A number whose bit s is the s-th flag."""
    return sum(flag << s for s, flag in enumerate(flags))


def _grid(B: int, H: int) -> tuple[int]:
    return (-(-B * H // _BLOCK),)
