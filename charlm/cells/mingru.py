"""The minimal gated recurrent unit (Feng et al. 2024, arXiv:2410.01201)."""

from typing import Any, ClassVar

from charlm.cells.cell import Cell
from charlm.cells.step import Parameters, sigmoid, where


class MinGRU(Cell):
    """h_t = (1 − z) ⊙ h_{t−1} + z ⊙ h̃, whose gate z and candidate h̃ depend on the input only (section 3.1).

    With `positive`, the candidates are above 0, as in the paper's log-space form (appendix B).
    """

    meanings: ClassVar = {"h": ("memory",), "z": ("update gate", "keeps", "replaces")}

    kind: str = "mingru"
    """Minimal GRU whose gates read the input only (Feng et al. 2024)."""
    positive: bool = False
    """Candidates g(a) > 0, the paper's log-space form; false: a, the plain form."""

    def step(self, p: Parameters, x: Any, h: Any) -> Any:
        z, candidate = p.product("weight_ih", x, 2) + p.vector("bias_ih", 2)
        # z_t = σ(W_z x_t + b_z)
        z = sigmoid(z)
        # h̃_t = W_h x_t + b_h, or g of it: g(a) = a + 0.5 for a ≥ 0, else σ(a)
        if self.positive:
            candidate = where(candidate > 0, candidate + 0.5, sigmoid(candidate))
        p.note(z=z)
        # h_t = (1 − z_t) ⊙ h_{t−1} + z_t ⊙ h̃_t
        return h + z * (candidate - h)
