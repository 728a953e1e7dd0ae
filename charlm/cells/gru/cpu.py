"""One layer of the gated recurrent unit by its CPU kernel."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from charlm.native.call import Kernel, Value, autocasts_to_bf16, first_derivative, operands, zoneout_fields
from charlm.native.generate import Step
from charlm.native.linear import gradient_of_inputs, gradient_of_recurrence, project
from charlm.native.lookup import Lookup

KERNEL = Kernel(Path(__file__).with_name("cpu.cpp"))


def gru_layer(
    x: Tensor | Lookup,
    h_BH: Tensor,
    w_ih_GI: Tensor,
    w_hh_GH: Tensor,
    b_ih_G: Tensor,
    b_hh_G: Tensor,
    *,
    mask_BH: Tensor | None = None,
    kept_TBH: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [T, B, H] and last state [B, H]: `gru_layer` of reference.py, in float32 on the CPU.

    Under autocast to bfloat16 the products are bfloat16; sums, gates and states stay float32.
    """
    inputs, ids_TB = project(x, w_ih_GI, b_ih_G)
    options = {"with_backward": torch.is_grad_enabled(), "bf16": autocasts_to_bf16()}
    y_TBH = _Sequence.apply(inputs, ids_TB, h_BH, w_hh_GH, b_hh_G, mask_BH, kept_TBH, *options.values())
    return y_TBH, y_TBH[-1]  # type: ignore[index]


def gru_step(
    h_BH: Tensor,
    w_ih_GI: Tensor,
    w_hh_GH: Tensor,
    b_ih_G: Tensor,
    b_hh_G: Tensor,
    *,
    kept_11H: Tensor | None = None,
) -> Step:
    """Sets up one layer for `gru_generate`, starting from the given state."""
    B, H = h_BH.shape
    fields: dict[str, Value] = {
        **{"T": 1, "B": B, "H": H},
        "weights": w_hh_GH.detach().contiguous(),
        "biases": b_hh_G.detach().contiguous(),
        "outputs": torch.stack([h_BH, h_BH]),
        **zoneout_fields(kept_11H),
    }
    return Step(w_ih_GI, b_ih_G, fields)


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        ids_TB: Tensor | None,
        h_BH: Tensor,
        w_hh_GH: Tensor,
        b_hh_G: Tensor,
        mask_BH: Tensor | None,
        kept_TBH: Tensor | None,
        with_backward: bool,
        bf16: bool,
    ) -> Tensor:
        B, H = h_BH.shape
        T = len(inputs) if ids_TB is None else len(ids_TB)
        states = inputs.new_empty(1 + T, B, H)
        states[0] = h_BH
        gates = inputs.new_empty(T, B, 4, H) if with_backward else None
        weights = w_hh_GH.contiguous()
        KERNEL(
            "gru_forward",
            **{"T": T, "B": B, "H": H, "bf16": bf16},
            weights=weights,
            biases=b_hh_G.contiguous(),
            mask=mask_BH,
            **zoneout_fields(kept_TBH),
            inputs=inputs,
            ids=ids_TB,
            outputs=states,
            gates=gates,
            operands=operands(B, H, inputs, copied=bf16 or mask_BH is not None),
        )
        ctx.save_for_backward(ids_TB, weights, mask_BH, kept_TBH, states, gates)
        ctx.bf16, ctx.V = bf16, len(inputs)
        return states[1:]

    @staticmethod
    @first_derivative
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_TBH: Tensor
    ) -> tuple[Tensor | None, ...]:
        ids_TB, weights, mask_BH, kept_TBH, states, gates = ctx.saved_tensors
        rows, H = weights.shape
        T, B = gates.shape[:2]
        d_maps = dy_TBH.new_empty(T, B, rows)
        d_inputs = torch.empty_like(d_maps)
        dh_BH = dy_TBH.new_empty(B, H)
        KERNEL(
            "gru_backward",
            **{"T": T, "B": B, "H": H, "bf16": ctx.bf16},
            weights=weights,
            mask=mask_BH,
            **zoneout_fields(kept_TBH),
            outputs=states,
            gates=gates,
            d_outputs=dy_TBH.contiguous(),
            d_maps=d_maps,
            d_inputs=d_inputs,
            d_first=dh_BH,
            operands=operands(B, rows, dy_TBH, copied=ctx.bf16),
        )
        dw_GH = gradient_of_recurrence(d_maps, states[:-1], mask_BH, bf16=ctx.bf16)
        dx, db_G = gradient_of_inputs(d_inputs, ids_TB, ctx.V), d_maps.sum((0, 1))
        return dx, None, dh_BH, dw_GH, db_G, None, None, None, None
