"""One layer of the LSTM, plain or with layer normalization, by its CPU kernel."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from charlm.cells.lstm.reference import LAYER_NORM_EPS, LayerNorm
from charlm.native.call import Kernel, Value, autocasts_to_bf16, first_derivative, operands, zoneout_fields
from charlm.native.generate import Step
from charlm.native.linear import gradient_of_inputs, gradient_of_recurrence, project
from charlm.native.lookup import Lookup

KERNEL = Kernel(Path(__file__).with_name("cpu.cpp"))


def lstm_layer(
    x: Tensor | Lookup,
    h_BH: Tensor,
    c_BH: Tensor,
    w_ih_GI: Tensor,
    w_hh_GH: Tensor,
    b_ih_G: Tensor,
    b_hh_G: Tensor,
    *,
    layer_norm: LayerNorm | None = None,
    mask_BH: Tensor | None = None,
    kept_TBS: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [T, B, H] and last h, c [B, H]: `lstm_layer` of reference.py, in float32 on the CPU.

    Under autocast to bfloat16 the products are bfloat16; sums, gates and states stay float32.
    """
    inputs, ids_TB = project(x, w_ih_GI, b_ih_G + b_hh_G)
    gains_5H, shifts_5H = _stacked(layer_norm)
    options = {"with_backward": torch.is_grad_enabled(), "bf16": autocasts_to_bf16()}
    y_TBH, c_BH = _Sequence.apply(  # type: ignore[misc]
        inputs, ids_TB, h_BH, c_BH, w_hh_GH, gains_5H, shifts_5H, mask_BH, kept_TBS, *options.values()
    )
    return y_TBH, y_TBH[-1], c_BH


def lstm_step(
    h_BH: Tensor,
    c_BH: Tensor,
    w_ih_GI: Tensor,
    w_hh_GH: Tensor,
    b_ih_G: Tensor,
    b_hh_G: Tensor,
    *,
    layer_norm: LayerNorm | None = None,
    kept_11S: Tensor | None = None,
) -> Step:
    """Sets up one layer for `lstm_generate`, starting from the given state."""
    B, H = h_BH.shape
    gains_5H, shifts_5H = _stacked(layer_norm)
    fields: dict[str, Value] = {
        **{"T": 1, "B": B, "H": H, "epsilon": LAYER_NORM_EPS},
        "weights": w_hh_GH.detach().contiguous(),
        "gains": gains_5H,
        "shifts": shifts_5H,
        "outputs": torch.stack([h_BH, h_BH]),
        "cells": torch.stack([c_BH, c_BH]),
        "partials": _partials(B, like=h_BH),
        **zoneout_fields(kept_11S),
    }
    return Step(w_ih_GI, b_ih_G + b_hh_G, fields)


def _stacked(layer_norm: LayerNorm | None) -> tuple[Tensor | None, Tensor | None]:
    """Gains and biases of layer normalization, stacked i, f, g, o, c: [5, H] each."""
    if layer_norm is None:
        return None, None
    gains_5H = torch.cat([layer_norm.gain_gates_4H, layer_norm.gain_cell_H[None]])
    return gains_5H, torch.cat([layer_norm.bias_gates_4H, layer_norm.bias_cell_H[None]])


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        ids_TB: Tensor | None,
        h_BH: Tensor,
        c_BH: Tensor,
        w_hh_GH: Tensor,
        gains_5H: Tensor | None,
        shifts_5H: Tensor | None,
        mask_BH: Tensor | None,
        kept_TBS: Tensor | None,
        with_backward: bool,
        bf16: bool,
    ) -> tuple[Tensor, Tensor]:
        (T, B), H = inputs.shape[:2] if ids_TB is None else ids_TB.shape, w_hh_GH.shape[1]
        inputs, weights = inputs.contiguous(), w_hh_GH.contiguous()
        outputs, cells = inputs.new_empty(1 + T, B, H), inputs.new_empty(1 + T, B, H)
        outputs[0], cells[0] = h_BH, c_BH
        gates = normal = moments = None
        if with_backward:
            gates = inputs.new_empty(T, B, 4, H)
            if gains_5H is not None:
                normal, moments = torch.empty_like(gates), inputs.new_empty(T, B, 6)
        KERNEL(
            "lstm_forward",
            **{"T": T, "B": B, "H": H, "bf16": bf16, "epsilon": LAYER_NORM_EPS},
            weights=weights,
            gains=gains_5H,
            shifts=shifts_5H,
            mask=mask_BH,
            **zoneout_fields(kept_TBS),
            inputs=inputs,
            ids=ids_TB,
            outputs=outputs,
            cells=cells,
            gates=gates,
            normal=normal,
            moments=moments,
            operands=operands(B, H, inputs, copied=bf16 or mask_BH is not None),
            partials=_partials(B, like=inputs),
        )
        ctx.save_for_backward(
            ids_TB, weights, gains_5H, shifts_5H, mask_BH, kept_TBS, outputs, cells, gates, normal, moments
        )
        ctx.bf16, ctx.V = bf16, len(inputs)
        return outputs[1:], cells[-1]

    @staticmethod
    @first_derivative
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_TBH: Tensor, dc_BH: Tensor
    ) -> tuple[Tensor | None, ...]:
        ids_TB, weights, gains_5H, shifts_5H, mask_BH, kept_TBS, outputs, cells, gates, normal, moments = (
            ctx.saved_tensors
        )
        T, B, _, H = gates.shape
        d_maps = dy_TBH.new_empty(T, B, 4 * H)
        d_gains = d_shifts = None
        if gains_5H is not None:
            d_gains, d_shifts = torch.zeros_like(gains_5H), torch.zeros_like(gains_5H)
        dh_BH, d_first_cell_BH = dy_TBH.new_empty(B, H), dy_TBH.new_empty(B, H)
        KERNEL(
            "lstm_backward",
            **{"T": T, "B": B, "H": H, "bf16": ctx.bf16},
            weights=weights,
            gains=gains_5H,
            shifts=shifts_5H,
            mask=mask_BH,
            **zoneout_fields(kept_TBS),
            cells=cells,
            gates=gates,
            normal=normal,
            moments=moments,
            d_outputs=dy_TBH.contiguous(),
            d_last_cell=dc_BH.contiguous(),
            d_maps=d_maps,
            d_gains=d_gains,
            d_shifts=d_shifts,
            d_first=dh_BH,
            d_first_cell=d_first_cell_BH,
            operands=operands(B, 4 * H, dy_TBH, copied=ctx.bf16),
            partials=_partials(B, like=dy_TBH),
        )
        dw_GH = gradient_of_recurrence(d_maps, outputs[:-1], mask_BH, bf16=ctx.bf16)
        return (
            gradient_of_inputs(d_maps, ids_TB, ctx.V),
            None,
            dh_BH,
            d_first_cell_BH,
            dw_GH,
            d_gains,
            d_shifts,
            None,
            None,
            None,
            None,
        )


def _partials(batch_size: int, like: Tensor) -> Tensor:
    """Scratch for the sums that threads exchange in layer normalization."""
    return like.new_empty(torch.get_num_threads(), 2 * 5, batch_size)
