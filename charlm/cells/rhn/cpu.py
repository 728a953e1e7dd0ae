"""One layer of the recurrent highway network by its CPU kernel."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from charlm.native.call import Kernel, Value, autocasts_to_bf16, first_derivative, operands, zoneout_fields
from charlm.native.generate import Step
from charlm.native.linear import gradient_of_inputs, gradient_of_recurrence, project
from charlm.native.lookup import Lookup

KERNEL = Kernel(Path(__file__).with_name("cpu.cpp"))


def rhn_layer(
    x: Tensor | Lookup,
    s_BH: Tensor,
    w_ih_GI: Tensor,
    w_hh_DGH: Tensor,
    b_hh_DG: Tensor,
    *,
    mask_BH: Tensor | None = None,
    kept_TBH: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [T, B, H] and last state [B, H]: `rhn_layer` of reference.py, in float32 on the CPU.

    Under autocast to bfloat16 the products are bfloat16; sums, gates and states stay float32.
    """
    inputs, ids_TB = project(x, w_ih_GI, b_hh_DG[0])
    options = {"with_backward": torch.is_grad_enabled(), "bf16": autocasts_to_bf16()}
    y_TBH = _Sequence.apply(inputs, ids_TB, s_BH, w_hh_DGH, b_hh_DG, mask_BH, kept_TBH, *options.values())
    return y_TBH, y_TBH[-1]  # type: ignore[index]


def rhn_step(
    s_BH: Tensor, w_ih_GI: Tensor, w_hh_DGH: Tensor, b_hh_DG: Tensor, *, kept_11H: Tensor | None = None
) -> Step:
    """Sets up one layer for `rhn_generate`, starting from the given state."""
    (B, H), (D, rows, _) = s_BH.shape, w_hh_DGH.shape
    sizes: dict[str, Value] = {"T": 1, "B": B, "H": H, "D": D, "G": rows // H}
    tensors = {
        "weights": w_hh_DGH.detach().contiguous(),
        "biases": b_hh_DG.detach().contiguous(),
        "inner": s_BH.new_empty(D - 1, 1, B, H),
        "outputs": torch.stack([s_BH, s_BH]),
    }
    return Step(w_ih_GI, b_hh_DG[0], sizes | tensors | zoneout_fields(kept_11H))


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        ids_TB: Tensor | None,
        s_BH: Tensor,
        w_hh_DGH: Tensor,
        b_hh_DG: Tensor,
        mask_BH: Tensor | None,
        kept_TBH: Tensor | None,
        with_backward: bool,
        bf16: bool,
    ) -> Tensor:
        D, rows, H = w_hh_DGH.shape
        T, B = inputs.shape[:2] if ids_TB is None else ids_TB.shape
        saved_steps = T if with_backward else 1
        inner = inputs.new_empty(D - 1, saved_steps, B, H)
        states = inputs.new_empty(1 + T, B, H)
        states[0] = s_BH
        gates = inputs.new_empty(D, T, B, rows) if with_backward else None
        weights, biases = w_hh_DGH.contiguous(), b_hh_DG.contiguous()
        KERNEL(
            "rhn_forward",
            **{"T": T, "B": B, "H": H, "D": D, "G": rows // H, "bf16": bf16},
            weights=weights,
            biases=biases,
            mask=mask_BH,
            **zoneout_fields(kept_TBH),
            inputs=inputs,
            ids=ids_TB,
            inner=inner,
            outputs=states,
            gates=gates,
            operands=operands(B, H, inputs, copied=bf16 or mask_BH is not None),
        )
        ctx.save_for_backward(ids_TB, weights, mask_BH, kept_TBH, inner, states, gates)
        ctx.bf16, ctx.V = bf16, len(inputs)
        return states[1:]

    @staticmethod
    @first_derivative
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_TBH: Tensor
    ) -> tuple[Tensor | None, ...]:
        ids_TB, weights, mask_BH, kept_TBH, inner, states, gates = ctx.saved_tensors
        D, rows, H = weights.shape
        T, B = len(states) - 1, states.shape[1]
        d_maps = dy_TBH.new_empty(D, T, B, rows)
        ds_BH = dy_TBH.new_empty(B, H)
        KERNEL(
            "rhn_backward",
            **{"T": T, "B": B, "H": H, "D": D, "G": rows // H, "bf16": ctx.bf16},
            weights=weights,
            mask=mask_BH,
            **zoneout_fields(kept_TBH),
            inner=inner,
            outputs=states,
            gates=gates,
            d_outputs=dy_TBH.contiguous(),
            d_maps=d_maps,
            d_first=ds_BH,
            operands=operands(B, rows, dy_TBH, copied=ctx.bf16),
        )
        dw_DGH = torch.empty_like(weights)
        db_DG = d_maps.sum((1, 2))
        # The biases of d = 1 are added to the inputs, which have their gradient.
        db_DG[0] = 0
        for d in range(D):
            before = states[:-1] if d == 0 else inner[d - 1]
            gradient_of_recurrence(d_maps[d], before, mask_BH, bf16=ctx.bf16, out=dw_DGH[d])
        return gradient_of_inputs(d_maps[0], ids_TB, ctx.V), None, ds_BH, dw_DGH, db_DG, None, None, None, None
