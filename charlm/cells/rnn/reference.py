"""The equations of one layer of the simple recurrent network (Elman 1990), as in torch.nn.RNN."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells.backend import Seen
from charlm.cells.base import add_product, zone_out

Nonlinearity = Literal["tanh", "relu"]


def rnn_layer(
    x_TBI: Tensor,
    h_BH: Tensor,
    w_ih_HI: Tensor,
    w_hh_HH: Tensor,
    b_ih_H: Tensor,
    b_hh_H: Tensor,
    *,
    nonlinearity: Nonlinearity = "tanh",
    mask_BH: Tensor | None = None,
    kept_TBH: Tensor | None = None,
    seen: Seen | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [T, B, H] and last state [B, H] from inputs [T, B, I] and first state [B, H].

    φ is tanh or relu. `mask_BH` multiplies h_{t−1} in the product. `kept_TBH` is the share of h_{t−1} that zoneout
    keeps, see `zone_out`.
    """
    activation = torch.tanh if nonlinearity == "tanh" else torch.relu
    # One matrix product for the inputs of the whole window.
    x_TBH = F.linear(x_TBI, w_ih_HI, b_ih_H + b_hh_H)
    w_hh_t_HH = w_hh_HH.t()
    outputs = []
    for t, x_BH in enumerate(x_TBH.unbind()):
        # h_t = φ(W_xh x_t + b_x + W_hh h_{t−1} + b_h)
        new_BH = activation(add_product(x_BH, h_BH, w_hh_t_HH, mask_BH))
        h_BH = zone_out(new_BH, h_BH, kept_TBH, t)
        if seen:
            seen.note({"h": h_BH}, {})
        outputs.append(h_BH)
    return torch.stack(outputs), h_BH
