"""The gated recurrent unit (Cho et al. 2014)."""

from typing import Any, ClassVar

from charlm.cells.cell import Cell
from charlm.cells.step import Parameters, sigmoid, tanh


class GRU(Cell):
    """Gates r (reset) and z (update), candidate n; h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}, as in torch.nn.GRU.

    As in torch.nn and cuDNN, and unlike Cho et al., r multiplies the recurrent product and its bias: one product serves
    all gates.
    """

    meanings: ClassVar = {
        "h": ("memory",),
        "r": ("reset gate", "ignores the past", "uses the past"),
        "z": ("update gate", "replaces", "keeps"),
        "n": ("new value",),
    }

    kind: str = "gru"
    """Gated recurrent unit."""

    def step(self, p: Parameters, x: Any, h: Any) -> Any:
        x_r, x_z, x_n = p.product("weight_ih", x, 3) + p.vector("bias_ih", 3)
        h_r, h_z, h_n = p.product("weight_hh", h, 3) + p.vector("bias_hh", 3)
        # r = σ(W_ir x + b_ir + W_hr h + b_hr)                          (5)
        r = sigmoid(x_r + h_r)
        # z = σ(W_iz x + b_iz + W_hz h + b_hz)                          (6)
        z = sigmoid(x_z + h_z)
        # n = tanh(W_in x + b_in + r ⊙ (W_hn h + b_hn))                 (8)
        n = tanh(x_n + r * h_n)
        p.note(r=r, z=z, n=n)
        # h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}                               (7)
        return n + z * (h - n)
