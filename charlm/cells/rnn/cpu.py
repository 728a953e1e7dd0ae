"""One layer of the simple recurrent network by its CPU kernel."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from charlm.cells.rnn.reference import Nonlinearity
from charlm.native.call import Kernel, Value, autocasts_to_bf16, first_derivative, operands, zoneout_fields
from charlm.native.generate import Step
from charlm.native.linear import gradient_of_inputs, gradient_of_recurrence, project
from charlm.native.lookup import Lookup

KERNEL = Kernel(Path(__file__).with_name("cpu.cpp"))


def rnn_layer(
    x: Tensor | Lookup,
    h_BH: Tensor,
    w_ih_HI: Tensor,
    w_hh_HH: Tensor,
    b_ih_H: Tensor,
    b_hh_H: Tensor,
    *,
    nonlinearity: Nonlinearity = "tanh",
    mask_BH: Tensor | None = None,
    kept_TBH: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [T, B, H] and last state [B, H]: `rnn_layer` of reference.py, in float32 on the CPU.

    Under autocast to bfloat16 the products are bfloat16; sums and states stay float32.
    """
    inputs, ids_TB = project(x, w_ih_HI, b_ih_H + b_hh_H)
    relu = nonlinearity == "relu"
    options = {"with_backward": torch.is_grad_enabled(), "relu": relu, "bf16": autocasts_to_bf16()}
    y_TBH = _Sequence.apply(inputs, ids_TB, h_BH, w_hh_HH, mask_BH, kept_TBH, *options.values())
    return y_TBH, y_TBH[-1]  # type: ignore[index]


def rnn_step(
    h_BH: Tensor,
    w_ih_HI: Tensor,
    w_hh_HH: Tensor,
    b_ih_H: Tensor,
    b_hh_H: Tensor,
    *,
    nonlinearity: Nonlinearity = "tanh",
    kept_11H: Tensor | None = None,
) -> Step:
    """Sets up one layer for `rnn_generate`, starting from the given state."""
    B, H = h_BH.shape
    fields: dict[str, Value] = {
        **{"T": 1, "B": B, "H": H, "relu": nonlinearity == "relu"},
        "weights": w_hh_HH.detach().contiguous(),
        "outputs": torch.stack([h_BH, h_BH]),
        **zoneout_fields(kept_11H),
    }
    return Step(w_ih_HI, b_ih_H + b_hh_H, fields)


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        ids_TB: Tensor | None,
        h_BH: Tensor,
        w_hh_HH: Tensor,
        mask_BH: Tensor | None,
        kept_TBH: Tensor | None,
        with_backward: bool,
        relu: bool,
        bf16: bool,
    ) -> Tensor:
        B, H = h_BH.shape
        T = len(inputs) if ids_TB is None else len(ids_TB)
        states = inputs.new_empty(1 + T, B, H)
        states[0] = h_BH
        made = torch.empty_like(states[1:]) if with_backward and kept_TBH is not None else None
        weights = w_hh_HH.contiguous()
        KERNEL(
            "rnn_forward",
            **{"T": T, "B": B, "H": H, "relu": relu, "bf16": bf16},
            weights=weights,
            mask=mask_BH,
            **zoneout_fields(kept_TBH),
            inputs=inputs,
            ids=ids_TB,
            outputs=states,
            made=made,
            operands=operands(B, H, inputs, copied=bf16 or mask_BH is not None),
        )
        ctx.save_for_backward(ids_TB, weights, mask_BH, kept_TBH, states, made)
        ctx.relu, ctx.bf16, ctx.V = relu, bf16, len(inputs)
        return states[1:]

    @staticmethod
    @first_derivative
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_TBH: Tensor
    ) -> tuple[Tensor | None, ...]:
        ids_TB, weights, mask_BH, kept_TBH, states, made = ctx.saved_tensors
        B, H = states.shape[1:]
        d_maps = torch.empty_like(states[1:])
        dh_BH = dy_TBH.new_empty(B, H)
        KERNEL(
            "rnn_backward",
            **{"T": len(d_maps), "B": B, "H": H, "relu": ctx.relu, "bf16": ctx.bf16},
            weights=weights,
            mask=mask_BH,
            **zoneout_fields(kept_TBH),
            outputs=states,
            made=made,
            d_outputs=dy_TBH.contiguous(),
            d_maps=d_maps,
            d_first=dh_BH,
            operands=operands(B, H, dy_TBH, copied=ctx.bf16),
        )
        dw_HH = gradient_of_recurrence(d_maps, states[:-1], mask_BH, bf16=ctx.bf16)
        return gradient_of_inputs(d_maps, ids_TB, ctx.V), None, dh_BH, dw_HH, None, None, None, None, None
