"""The equations of one layer of the LSTM (Hochreiter & Schmidhuber 1997; forget gate: Gers et al. 2000).

As in torch.nn.LSTM, without peepholes. Layer normalization follows Ba et al. 2016, except that it applies to the
sum of both products, and to each gate separately.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells.backend import Seen
from charlm.cells.base import add_product, zone_out

LAYER_NORM_EPS = 1e-5


class LayerNorm(NamedTuple):
    """Gains and biases of layer normalization: for the gates i, f, g, o, and for the cell c."""

    gain_gates_4H: Tensor
    bias_gates_4H: Tensor
    gain_cell_H: Tensor
    bias_cell_H: Tensor


def lstm_layer(
    x_TBI: Tensor,
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
    seen: Seen | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs [T, B, H] and last h, c [B, H] from inputs [T, B, I] and first h, c [B, H].

    Gates are stacked i, f, g, o (G = 4H). `mask_BH` multiplies h_{t−1} in the product, never c_{t−1}. `kept_TBS` is
    the share of h_{t−1} and of c_{t−1} that zoneout keeps, side by side (S = 2H), see `zone_out`. Zoneout acts after
    the new h is computed from the new c (Krueger et al. 2017).
    """
    # One matrix product for the inputs of the whole window.
    x_TBG = F.linear(x_TBI, w_ih_GI, b_ih_G + b_hh_G)
    w_hh_HG = w_hh_GH.t()
    kept_h_TBH, kept_c_TBH = (None, None) if kept_TBS is None else kept_TBS.chunk(2, dim=2)
    outputs = []
    for t, x_BG in enumerate(x_TBG.unbind()):
        # i, f, g, o = W_x x_t + b_x + W_h h_{t−1} + b_h
        a_BG = add_product(x_BG, h_BH, w_hh_HG, mask_BH)
        if layer_norm is not None:
            a_BG = normalize_gates(a_BG, layer_norm)
        i_BH, f_BH, g_BH, o_BH = a_BG.chunk(4, dim=1)
        # c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g)
        i_BH, f_BH, g_BH, o_BH = torch.sigmoid(i_BH), torch.sigmoid(f_BH), torch.tanh(g_BH), torch.sigmoid(o_BH)
        new_c_BH = torch.addcmul(f_BH * c_BH, i_BH, g_BH)
        # h_t = σ(o) ⊙ tanh(c_t), or σ(o) ⊙ tanh(LN(c_t)), with c_t before zoneout
        n_BH = new_c_BH if layer_norm is None else normalize_cell(new_c_BH, layer_norm)
        h_BH = zone_out(o_BH * torch.tanh(n_BH), h_BH, kept_h_TBH, t)
        c_BH = zone_out(new_c_BH, c_BH, kept_c_TBH, t)
        if seen:
            seen.note({"h": h_BH, "c": c_BH}, {"i": i_BH, "f": f_BH, "g": g_BH, "o": o_BH})
        outputs.append(h_BH)
    return torch.stack(outputs), h_BH, c_BH


def normalize_gates(a_BG: Tensor, layer_norm: LayerNorm) -> Tensor:
    """Layer normalization of each of i, f, g, o over its H units."""
    a_B4H = a_BG.unflatten(1, (4, -1))
    unit_B4H = F.layer_norm(a_B4H, a_B4H.shape[2:], eps=LAYER_NORM_EPS)
    return torch.addcmul(layer_norm.bias_gates_4H, unit_B4H, layer_norm.gain_gates_4H).flatten(1)


def normalize_cell(c_BH: Tensor, layer_norm: LayerNorm) -> Tensor:
    """Layer normalization of c over its H units."""
    return F.layer_norm(c_BH, c_BH.shape[1:], layer_norm.gain_cell_H, layer_norm.bias_cell_H, eps=LAYER_NORM_EPS)
