"""One recurrent layer by the CPU driver, with the equations of a kind's gates.h."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from charlm.native.call import Kernel, autocasts_to_bf16, first_derivative
from charlm.native.linear import gradient_of_inputs, matmul, project
from charlm.native.lookup import Lookup
from charlm.native.structs import Struct, Value

_HERE = Path(__file__).parent


class LayerWeights(NamedTuple):
    """The parameters of one layer, in float32, as the driver takes them."""

    w_ih_GI: Tensor
    bias_G: Tensor
    """All biases that are added to the product of the input, see `b_hh_DG`."""
    w_hh_DGH: Tensor
    """[G, H] for one micro-step per step, or [D, G, H]."""
    b_hh_DG: Tensor | None = None
    """Biases of the recurrent products of the second and later micro-steps and, in the first, of the gates that stay
    apart; other elements are not used. None: there are none."""
    norm: tuple[Tensor, Tensor] | None = None
    """Gains and biases of layer normalization, [gates + 1, H] each: those of the gates, then of the second state."""
    epsilon: float = 0.0
    """Added to the variance in layer normalization."""
    variant: int = 0
    """The index in `Variants` of gates.h."""


class Recurrence(Kernel):
    """The driver compiled with the equations in the gates.h of `folder`."""

    def __init__(self, folder: Path) -> None:
        structs = Struct(_HERE / "recurrence.h"), Struct(_HERE / "generate.h", "Generation")
        super().__init__(_HERE / "recurrence.cpp", structs, folder)

    @functools.cache  # noqa: B019
    def sizes(self, variant: int) -> tuple[int, int]:
        """Vectors per unit that the backward pass needs, and the number of gates that stay apart."""
        sizes = self.structs[0].fill(variant=variant)
        self.call("recurrence_sizes", sizes)
        return sizes.saved_count, sizes.apart_count

    def layer(
        self,
        x: Tensor | Lookup,
        state: tuple[Tensor, ...],
        weights: LayerWeights,
        mask_BH: Tensor | None = None,
        kept_TBS: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs [T, B, H] and last state, [B, H] for each state tensor, in float32 on the CPU.

        Under autocast to bfloat16 the products are bfloat16; sums, gates and states stay float32. For mask and kept
        see `LayerCall`.
        """
        inputs, ids_TB = project(x, weights.w_ih_GI, weights.bias_G)
        call = _Call(self, weights.variant, weights.epsilon, torch.is_grad_enabled(), autocasts_to_bf16())
        y_TBH, *last = _Sequence.apply(  # type: ignore[misc]
            call, inputs, ids_TB, weights.w_hh_DGH, weights.b_hh_DG, *(weights.norm or (None, None)),
            mask_BH, kept_TBS, *state,
        )  # fmt: skip
        return y_TBH, tuple(last)

    def one_step(
        self, state: tuple[Tensor, ...], weights: LayerWeights, kept_11S: Tensor | None = None
    ) -> dict[str, Value]:
        """Fields of `Arguments` for generation from `state`, all but the input's; states are [S, 2, B, H]."""
        (B, H), G = state[0].shape, len(weights.bias_G)
        gains, shifts = weights.norm or (None, None)
        D = weights.w_hh_DGH.numel() // (G * H)
        return {
            **{"T": 1, "B": B, "H": H, "D": D, "variant": weights.variant, "epsilon": weights.epsilon},
            "weights": weights.w_hh_DGH.detach().contiguous(),
            "biases": None if weights.b_hh_DG is None else weights.b_hh_DG.detach().contiguous(),
            "gains": gains,
            "shifts": shifts,
            "states": torch.stack([torch.stack([tensor, tensor]) for tensor in state]),
            "inner": state[0].new_empty(D - 1, 1, B, H),
            "partials": _partials(gains, B),
            **_zoneout_fields(kept_11S),
        }


class _Call(NamedTuple):
    """What a call takes besides tensors."""

    kernel: Recurrence
    variant: int
    epsilon: float
    with_backward: bool
    bf16: bool


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: _Call,
        inputs: Tensor,
        ids_TB: Tensor | None,
        w_hh_DGH: Tensor,
        b_hh_DG: Tensor | None,
        gains: Tensor | None,
        shifts: Tensor | None,
        mask_BH: Tensor | None,
        kept_TBS: Tensor | None,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        (T, B), (G, H), S = (inputs if ids_TB is None else ids_TB).shape[:2], w_hh_DGH.shape[-2:], len(state)
        weights = w_hh_DGH.contiguous()
        D, saved_count = weights.numel() // (G * H), call.kernel.sizes(call.variant)[0]
        new = inputs.new_empty
        states, inner = new(S, 1 + T, B, H), new(D - 1, T if call.with_backward else 1, B, H)
        for first, tensor in zip(states[:, 0], state, strict=True):
            first.copy_(tensor)
        saved = made = normal = moments = None
        if call.with_backward:
            saved = new(D, T, B, saved_count, H)
            made = None if kept_TBS is None else new(S, T, B, H)
            if gains is not None:
                normal, moments = new(T, B, G), new(T, B, len(gains) + 1)
        sizes: dict[str, Value] = {"T": T, "B": B, "H": H, "D": D, "variant": call.variant, "bf16": call.bf16}
        call.kernel(
            "recurrence_forward",
            **sizes,
            weights=weights,
            biases=None if b_hh_DG is None else b_hh_DG.contiguous(),
            epsilon=call.epsilon,
            gains=gains,
            shifts=shifts,
            mask=mask_BH,
            **_zoneout_fields(kept_TBS),
            inputs=inputs.contiguous(),
            ids=ids_TB,
            states=states,
            inner=inner,
            saved=saved,
            made=made,
            normal=normal,
            moments=moments,
            operands=_operands(B, H, inputs, copied=call.bf16 or mask_BH is not None),
            partials=_partials(gains, B),
        )
        ctx.call, ctx.V, ctx.has_biases = call, len(inputs), b_hh_DG is not None
        ctx.save_for_backward(
            ids_TB, weights, gains, shifts, mask_BH, kept_TBS, states, inner, saved, made, normal, moments
        )
        # Copies: a view would keep the states of the whole window.
        return states[0, 1:], *states[:, -1].clone()

    @staticmethod
    @first_derivative
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_TBH: Tensor, *d_last: Tensor
    ) -> tuple[Tensor | None, ...]:
        ids_TB, weights, gains, shifts, mask_BH, kept_TBS, states, inner, saved, made, normal, moments = (
            ctx.saved_tensors
        )
        call: _Call = ctx.call
        (D, T, B, _, H), G, S = saved.shape, weights.shape[-2], len(states)
        d_maps, d_first = dy_TBH.new_empty(D, T, B, G), dy_TBH.new_empty(S, B, H)
        apart = call.kernel.sizes(call.variant)[1]
        d_inputs = torch.empty_like(d_maps[0]) if apart else None
        d_gains = d_shifts = None
        if gains is not None:
            d_gains, d_shifts = torch.zeros_like(gains), torch.zeros_like(gains)
        sizes: dict[str, Value] = {"T": T, "B": B, "H": H, "D": D, "variant": call.variant, "bf16": call.bf16}
        call.kernel(
            "recurrence_backward",
            **sizes,
            weights=weights,
            gains=gains,
            shifts=shifts,
            mask=mask_BH,
            **_zoneout_fields(kept_TBS),
            states=states,
            inner=inner,
            saved=saved,
            made=made,
            normal=normal,
            moments=moments,
            d_outputs=dy_TBH.contiguous(),
            d_last=torch.stack(d_last),
            d_maps=d_maps,
            d_inputs=d_inputs,
            d_gains=d_gains,
            d_shifts=d_shifts,
            d_first=d_first,
            operands=_operands(B, G, dy_TBH, copied=call.bf16),
            partials=_partials(gains, B),
        )
        dw_hh, db_DG = torch.empty_like(weights), None
        for d, dw_GH in enumerate(dw_hh.view(D, G, H)):
            before = states[0, :-1] if d == 0 else inner[d - 1]
            operands = before if mask_BH is None else before * mask_BH
            matmul(d_maps[d].flatten(0, 1).t(), operands.flatten(0, 1), bf16=call.bf16, out=dw_GH)
        if ctx.has_biases:
            db_DG = d_maps.sum((1, 2))
            # The inputs contain the other biases of the first micro-step.
            db_DG[0, : G - apart * H] = 0
        d_inputs = gradient_of_inputs(d_maps[0] if d_inputs is None else d_inputs, ids_TB, ctx.V)
        return None, d_inputs, None, dw_hh, db_DG, d_gains, d_shifts, None, None, *d_first


def _zoneout_fields(kept_TBS: Tensor | None) -> dict[str, Value]:
    return {} if kept_TBS is None else {"kept": kept_TBS, "kept_rows": kept_TBS.shape[0] * kept_TBS.shape[1]}


def _operands(batch_size: int, width: int, like: Tensor, *, copied: bool) -> Tensor | None:
    """Two scratch buffers [B, padded width] for copies that products read; None if they need no copies.

    Room for float32, or for bfloat16 padded to a multiple of 32 elements. The padding must be zero.
    """
    return like.new_zeros(2, batch_size, width + 16) if copied else None


def _partials(gains: Tensor | None, batch_size: int) -> Tensor | None:
    """Scratch for the sums that threads exchange in layer normalization."""
    return None if gains is None else gains.new_empty(torch.get_num_threads(), 2 * len(gains), batch_size)
