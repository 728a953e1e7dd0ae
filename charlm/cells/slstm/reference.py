"""The equations of one layer of the sLSTM with one head (Beck et al. 2024, arXiv:2405.04517)."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells.backend import Seen
from charlm.cells.base import add_product, zone_out

ForgetGate = Literal["sigmoid", "exponential"]

LEAST_EXPONENT = -87.0
"""Smaller exponents of the stabilized gates count as this one, so that n stays above 0 in single precision."""


def slstm_layer(
    x_TBI: Tensor,
    h_BH: Tensor,
    c_BH: Tensor,
    n_BH: Tensor,
    m_BH: Tensor,
    w_ih_GI: Tensor,
    w_hh_GH: Tensor,
    bias_G: Tensor,
    *,
    forget_gate: ForgetGate = "sigmoid",
    mask_BH: Tensor | None = None,
    kept_TBH: Tensor | None = None,
    seen: Seen | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Outputs [T, B, H] and last h, c, n, m [B, H] from inputs [T, B, I] and first h, c, n, m.

    Gates are stacked i, f, z, o (G = 4H); a tilde in the paper marks their arguments, a here. n normalizes c; m
    stabilizes: it scales c and n by e^−m, which h does not see. `mask_BH` multiplies h_{t−1} in the product.
    `kept_TBH` is the share of h_{t−1} that zoneout keeps, see `zone_out`; it does not apply to c, n and m, which mean
    something only together.
    """
    w_hh_HG = w_hh_GH.t()
    outputs = []
    for t, x_BG in enumerate(F.linear(x_TBI, w_ih_GI, bias_G).unbind()):
        # a = W x_t + R h_{t−1} + b
        i_BH, f_BH, z_BH, o_BH = add_product(x_BG, h_BH, w_hh_HG, mask_BH).chunk(4, dim=1)
        # i_t = exp(a_i), f_t = σ(a_f) or exp(a_f)                        (12), (13)
        log_f_BH = F.logsigmoid(f_BH) if forget_gate == "sigmoid" else f_BH
        # m_t = max(log f_t + m_{t−1}, log i_t)                           (15)
        old_BH = log_f_BH + m_BH
        m_BH = torch.maximum(old_BH, i_BH)
        # i'_t = exp(log i_t − m_t), f'_t = exp(log f_t + m_{t−1} − m_t)  (16), (17)
        i_BH = torch.exp((i_BH - m_BH).clamp(min=LEAST_EXPONENT))
        f_BH = torch.exp((old_BH - m_BH).clamp(min=LEAST_EXPONENT))
        # c_t = f'_t ⊙ c_{t−1} + i'_t ⊙ z_t, z_t = tanh(a_z)              (8), (11)
        c_BH = f_BH * c_BH + i_BH * torch.tanh(z_BH)
        # n_t = f'_t ⊙ n_{t−1} + i'_t                                     (9)
        n_BH = f_BH * n_BH + i_BH
        # h_t = o_t ⊙ c_t / n_t, o_t = σ(a_o)                             (10), (14)
        o_BH = torch.sigmoid(o_BH)
        h_BH = zone_out(o_BH * (c_BH / n_BH), h_BH, kept_TBH, t)
        if seen:
            # i', f' and c depend on the scale e^−m; shares of n and c / n do not.
            input_share_BH = i_BH / n_BH
            seen.note({"h": h_BH, "c": c_BH / n_BH}, {"i": input_share_BH, "f": 1 - input_share_BH, "o": o_BH})
        outputs.append(h_BH)
    return torch.stack(outputs), h_BH, c_BH, n_BH, m_BH
