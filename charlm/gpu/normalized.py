"""Everything in a step of a layer-normalized cell except its matrix product, in one Triton kernel for each pass.

A program of a kernel computes a row: all units of one stream, whose sums layer normalization needs.
"""

# Triton turns the numbers that a kernel is called with into its own types.
# pyright: reportArgumentType=false, reportMissingImports=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl
from torch import Tensor

from charlm.gpu.pointwise import (
    AS_WRITTEN,
    TritonSteps,
    bits,
    compiled,
    gradients_after,
    load_rows,
    put_direct,
    put_states,
    store_rows,
)
from charlm.gpu.recurrence import Window


@triton.jit
def normalize(a, H, epsilon, inside):
    """x = (a − mean) / σ of a row, 1 / σ, and the mean."""
    mean = tl.sum(tl.where(inside, a, 0.0)) / H
    deviation = tl.where(inside, a - mean, 0.0)
    scale = tl.rsqrt(tl.sum(deviation * deviation) / H + epsilon)
    return deviation * scale, scale, mean


# fmt: off
@triton.jit
def normalized_forward(
    sums,    # [B, G·H]: R h
    added,    # [B, G·H]: W x + b
    gains, shifts,    # [G + 1, H]: of the gates, then of the second state
    before, before_stride, after, after_stride, saved, made, made_stride, kept, kept_row, operand, mask,
    normal,    # [B, G, H], written: the gates' x
    moments,    # [B, G + 2], written: 1 / σ of each gate and of the second state, and the latter's mean. All other
                # arguments are as of `forward_step`
    H, epsilon,
    UPDATE: tl.constexpr, OUTPUT: tl.constexpr, G: tl.constexpr, S: tl.constexpr, K: tl.constexpr, ZONES: tl.constexpr,
    COPIED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):
    # fmt: on
    b = tl.program_id(0)
    u = tl.arange(0, BLOCK)
    inside = u < H
    at = b * H + u
    gates = ()
    for k in tl.static_range(G):
        row = (b * G + k) * H + u
        a = tl.load(added + row, inside, other=0.0) + tl.load(sums + row, inside, other=0.0)
        x, scale, _ = normalize(a, H, epsilon, inside)
        tl.store(normal + row, x, inside)
        tl.store(moments + b * (G + 2) + k, scale)
        gain, shift = tl.load(gains + k * H + u, inside, other=0.0), tl.load(shifts + k * H + u, inside, other=0.0)
        gates = gates + (x * gain + shift,)  # noqa: RUF005
    old = load_rows(before, S, before_stride, at, inside)
    rest, kept_back = UPDATE(gates, old)
    store_rows(saved, kept_back, K, H, b * K * H + u, inside)
    x, scale, mean = normalize(rest[0], H, epsilon, inside)
    tl.store(moments + b * (G + 2) + G, scale)
    tl.store(moments + b * (G + 2) + G + 1, mean)
    gain, shift = tl.load(gains + G * H + u, inside, other=0.0), tl.load(shifts + G * H + u, inside, other=0.0)
    new = (OUTPUT(kept_back, x * gain + shift),)
    for s in tl.static_range(S - 1):
        new = new + (rest[s],)  # noqa: RUF005
    share_at = b * kept_row + u
    put_states(
        new, after, after_stride, made, made_stride, kept, share_at, before, before_stride, operand, mask, at, H,
        inside, S, ZONES, COPIED, MASKED,
    )  # fmt: skip


@triton.jit
def through_norm(d, x, scale, gain, d_gain, d_shift, H, inside):
    """The gradient of a, from d, that of LN(a) = gain ⊙ x + shift. Adds to the gradients of gain and shift."""
    tl.store(d_gain, tl.load(d_gain, inside, other=0.0) + d * x, inside)
    tl.store(d_shift, tl.load(d_shift, inside, other=0.0) + d, inside)
    d = tl.where(inside, d * gain, 0.0)
    # da = (dx − mean(dx) − x ⊙ mean(dx ⊙ x)) / σ
    return (d - tl.sum(d) / H - x * (tl.sum(d * x) / H)) * scale


# fmt: off
@triton.jit
def normalized_backward(
    through, mask, d_outputs, direct, bypass, before, before_stride, after, after_stride, saved, kept, kept_row,
    d_maps, d_operand,
    gains, shifts, normal, moments,    # as of `normalized_forward`
    d_gains, d_shifts,    # [B, G + 1, H]: added to. All other arguments are as of `backward_step`
    B, H,
    OUTPUT_BACK: tl.constexpr, UPDATE_BACK: tl.constexpr, G: tl.constexpr, S: tl.constexpr, K: tl.constexpr,
    DIRECT: tl.constexpr, COPIED: tl.constexpr, MASKED: tl.constexpr, ZONES: tl.constexpr, BLOCK: tl.constexpr,
):
    # fmt: on
    b = tl.program_id(0)
    u = tl.arange(0, BLOCK)
    inside = u < H
    at = b * H + u
    share_at = b * kept_row + u
    d_after = gradients_after(
        through, mask, d_outputs, direct, bypass, kept, share_at, at, B * H, H, inside, S, MASKED, True, ZONES
    )
    old = load_rows(before, S, before_stride, at, inside)
    kept_back = load_rows(saved, K, H, b * K * H + u, inside)
    # The second state.
    second = tl.load(after + after_stride + at, inside, other=0.0)
    scale, mean = tl.load(moments + b * (G + 2) + G), tl.load(moments + b * (G + 2) + G + 1)
    x = tl.where(inside, (second - mean) * scale, 0.0)
    gain, shift = tl.load(gains + G * H + u, inside, other=0.0), tl.load(shifts + G * H + u, inside, other=0.0)
    d_last, d_second = OUTPUT_BACK(kept_back, x * gain + shift, d_after[0])
    row = (b * (G + 1) + G) * H + u
    d_second = through_norm(d_second, x, scale, gain, d_gains + row, d_shifts + row, H, inside)
    # The gates.
    d_others, d_direct = UPDATE_BACK(old, kept_back, d_after[1] + d_second)
    for k in tl.static_range(G):
        x = tl.load(normal + (b * G + k) * H + u, inside, other=0.0)
        gain, scale = tl.load(gains + k * H + u, inside, other=0.0), tl.load(moments + b * (G + 2) + k)
        row = (b * (G + 1) + k) * H + u
        if k < G - 1:
            d = through_norm(d_others[k], x, scale, gain, d_gains + row, d_shifts + row, H, inside)
        else:
            d = through_norm(d_last, x, scale, gain, d_gains + row, d_shifts + row, H, inside)
        tl.store(d_maps + (b * G + k) * H + u, d, inside)
        if COPIED:
            tl.store(d_operand + (b * G + k) * H + u, d, inside)
    put_direct(direct, d_direct, d_after, bypass, at, B * H, inside, S, DIRECT, ZONES)


def shape(H: int) -> dict[str, int]:
    """The size of a program that computes H units."""
    block = 1 << (H - 1).bit_length()  # the next power of 2
    return {"BLOCK": block, "num_warps": min(16, max(4, block // 128))}


class NormalizedTritonSteps(TritonSteps):
    """`Steps` by the kernels above. Such a cell has one micro-step per step, and no gate that stays apart."""

    def __init__(self, w: Window) -> None:
        super().__init__(w)
        B, H = w.states.shape[-2:]
        self._shape = shape(H)
        if w.d_gains is not None:
            # One sum for each stream: programs would add to a shared one in any order, and round differently each time.
            self._d_gains, self._d_shifts = w.d_gains.new_zeros(2, B, len(w.d_gains), H)

    def forward(self, t: int, d: int, sums_BG: Tensor) -> None:
        w, e = self.w, self.w.equations
        assert e.parts is not None and w.normal is not None and w.moments is not None  # noqa: PT018
        B, H = w.states.shape[-2:]
        zones = w.zones_out(d)
        made, made_stride = self._made(t) if zones else (None, 0)
        kept, kept_row = self._kept(t) if zones else (None, 0)
        normalized_forward[(B,)](
            sums_BG, w.inputs[t], w.gains, w.shifts, *self._states(t, d), *self._states_after(t, d),  # type: ignore[index]
            w.saved[d, w.row(t)], made, made_stride, kept, kept_row, self._operand, w.mask, w.normal[w.row(t)],
            w.moments[w.row(t)], H, w.epsilon,
            UPDATE=compiled(e.parts.update), OUTPUT=compiled(e.parts.output), G=e.gates, S=len(w.states), K=e.saved,
            ZONES=zones, COPIED=self._operand is not None, MASKED=w.mask is not None, **self._shape, **AS_WRITTEN,
        )  # fmt: skip

    def backward(self, t: int, d: int, through_BH: Tensor) -> None:
        w, e = self.w, self.w.equations
        assert e.parts is not None and w.normal is not None and w.moments is not None  # noqa: PT018
        B, H = w.states.shape[-2:]
        zones = w.zones_out(d)
        after = self._after_made(t, d)
        kept, kept_row = self._kept(t) if zones else (None, 0)
        normalized_backward[(B,)](
            through_BH, w.mask, w.d_outputs[t], self._d_states, self._bypass, *self._states(t, d), *after,  # type: ignore[index]
            w.saved[d, w.row(t)], kept, kept_row, w.d_maps[d, t], self._d_operand, w.gains, w.shifts,  # type: ignore[index]
            w.normal[w.row(t)], w.moments[w.row(t)], self._d_gains, self._d_shifts, B, H,
            OUTPUT_BACK=compiled(e.parts.output_back), UPDATE_BACK=compiled(e.parts.update_back), G=e.gates,
            S=len(w.states), K=e.saved, DIRECT=bits(e.direct), COPIED=self._d_operand is not None,
            MASKED=w.mask is not None, ZONES=3 * zones, **self._shape, **AS_WRITTEN,
        )  # fmt: skip

    def finish(self, through_BH: Tensor) -> None:
        super().finish(through_BH)
        assert self.w.d_gains is not None and self.w.d_shifts is not None  # noqa: PT018
        self.w.d_gains += self._d_gains.sum(0)
        self.w.d_shifts += self._d_shifts.sum(0)
