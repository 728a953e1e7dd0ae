"""The equations of one layer of the simple recurrent network (Elman 1990), as torch.nn.RNN has them."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells.base import add_product

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
) -> tuple[Tensor, Tensor]:
    """Outputs [T, B, H] and last state [B, H] from inputs [T, B, I] and first state [B, H].

    h_t = φ(W_xh x_t + b_x + W_hh h_{t−1} + b_h), φ = tanh or relu. `mask_BH` multiplies h_{t−1}.
    """
    activation = torch.tanh if nonlinearity == "tanh" else torch.relu
    # The inputs of all steps are known: one matrix product for the whole window.
    x_TBH = F.linear(x_TBI, w_ih_HI, b_ih_H + b_hh_H)
    w_hh_t_HH = w_hh_HH.t()
    outputs = []
    for x_BH in x_TBH.unbind():
        # h_t = φ(W_xh x_t + b_x + W_hh h_{t−1} + b_h)
        h_BH = activation(add_product(x_BH, h_BH, w_hh_t_HH, mask_BH))
        outputs.append(h_BH)
    return torch.stack(outputs), h_BH
