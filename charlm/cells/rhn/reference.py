"""The equations of one layer of the recurrent highway network (Zilly et al. 2017, arXiv:1607.03474)."""

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells.backend import Seen
from charlm.cells.base import add_product, zone_out


def rhn_layer(
    x_TBI: Tensor,
    s_BH: Tensor,
    w_ih_GI: Tensor,
    w_hh_DGH: Tensor,
    b_hh_DG: Tensor,
    *,
    couple_gates: bool = True,
    mask_BH: Tensor | None = None,
    kept_TBH: Tensor | None = None,
    seen: Seen | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs s_D [T, B, H] and last state [B, H] from inputs [T, B, I] and first state [B, H].

    Gates are stacked h, g, c (g is the paper's transform gate t): G = 3H, or 2H if `couple_gates` sets c = 1 − g.
    The output of step t − 1 is s_0 of step t; only d = 1 reads x_t. `mask_BH` multiplies s_{d−1} in the product of
    every d, but not where c carries it over. `kept_TBH` is the share of s_0 that zoneout keeps in the output, see
    `zone_out`.
    """
    # One matrix product for the inputs of the whole window, including the biases of d = 1.
    x_TBG = F.linear(x_TBI, w_ih_GI, b_hh_DG[0])
    weights_HG = w_hh_DGH.transpose(1, 2).unbind()
    biases_G = b_hh_DG.unbind()[1:]
    outputs = []
    for t, x_BG in enumerate(x_TBG.unbind()):
        first_BH = s_BH
        for depth, (a, w_HG) in enumerate(zip((x_BG, *biases_G), weights_HG, strict=True), start=1):
            # h_d = tanh(W_h x [d = 1] + R_h s_{d−1} + b_h)                           (7)
            # g_d = σ(W_g x [d = 1] + R_g s_{d−1} + b_g)                              (8)
            # c_d = σ(W_c x [d = 1] + R_c s_{d−1} + b_c), or 1 − g_d                  (9)
            a_BG = add_product(a, s_BH, w_HG, mask_BH)
            h, g, *c = a_BG.chunk(2 if couple_gates else 3, dim=1)
            h_BH, g_BH = torch.tanh(h), torch.sigmoid(g)
            # s_d = h_d ⊙ g_d + s_{d−1} ⊙ c_d                                         (6)
            if couple_gates:
                s_BH = torch.lerp(s_BH, h_BH, g_BH)
            else:
                s_BH = torch.addcmul(s_BH * torch.sigmoid(c[0]), h_BH, g_BH)
            if seen:
                # The last depth's state is noted after zoneout.
                states = {f"s{depth}": s_BH} if depth < len(weights_HG) else {}
                seen.note(states, {f"g{depth}": g_BH} | ({} if couple_gates else {f"c{depth}": torch.sigmoid(c[0])}))
        s_BH = zone_out(s_BH, first_BH, kept_TBH, t)
        if seen:
            seen.note({f"s{len(weights_HG)}": s_BH}, {})
        outputs.append(s_BH)
    return torch.stack(outputs), s_BH
