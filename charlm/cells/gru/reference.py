"""The equations of one layer of the gated recurrent unit (Cho et al. 2014), as in torch.nn.GRU."""

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells.backend import Seen
from charlm.cells.base import add_product, zone_out


def gru_layer(
    x_TBI: Tensor,
    h_BH: Tensor,
    w_ih_GI: Tensor,
    w_hh_GH: Tensor,
    b_ih_G: Tensor,
    b_hh_G: Tensor,
    *,
    mask_BH: Tensor | None = None,
    kept_TBH: Tensor | None = None,
    seen: Seen | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs [T, B, H] and last state [B, H] from inputs [T, B, I] and first state [B, H].

    Gates are stacked r, z, n (G = 3H). As in torch.nn and cuDNN, and unlike Cho et al., r multiplies the recurrent
    product with its bias, so one product serves all gates. `mask_BH` multiplies h_{t−1} in that product, but not
    where z carries it over. `kept_TBH` is the share of h_{t−1} that zoneout keeps, see `zone_out`.
    """
    # One matrix product for the inputs of the whole window.
    x_TBG = F.linear(x_TBI, w_ih_GI, b_ih_G).to(h_BH.dtype)
    w_hh_HG = w_hh_GH.t()
    H = h_BH.shape[1]
    outputs = []
    for t, x_BG in enumerate(x_TBG.unbind()):
        x_rz, x_n = x_BG.split((2 * H, H), dim=1)
        h_rz, h_n = add_product(b_hh_G, h_BH, w_hh_HG, mask_BH).split((2 * H, H), dim=1)
        # r = σ(W_ir x + b_ir + W_hr h + b_hr), z = σ(W_iz x + b_iz + W_hz h + b_hz)   (5), (6)
        r_BH, z_BH = torch.sigmoid(x_rz + h_rz).chunk(2, dim=1)
        # n = tanh(W_in x + b_in + r ⊙ (W_hn h + b_hn))                               (8)
        n_BH = torch.tanh(torch.addcmul(x_n, r_BH, h_n))
        # h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}                                             (7)
        h_BH = zone_out(torch.lerp(n_BH, h_BH, z_BH), h_BH, kept_TBH, t)
        if seen:
            seen.note({"h": h_BH}, {"r": r_BH, "z": z_BH, "n": n_BH})
        outputs.append(h_BH)
    return torch.stack(outputs), h_BH
