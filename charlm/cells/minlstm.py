"""The minimal LSTM (Feng et al. 2024, arXiv:2410.01201)."""

from typing import Any, ClassVar

from charlm.cells.cell import Cell
from charlm.cells.step import Parameters, sigmoid, softplus, where
from charlm.system.section import Bias


class MinLSTM(Cell):
    """h_t = f' ⊙ h_{t−1} + i' ⊙ h̃, f' = f / (f + i), i' = i / (f + i): gates read the input only (section 3.2).

    With `positive`, the candidates are above 0, as in the paper's log-space form (appendix B).
    """

    initial: ClassVar = ("forget_bias",)
    meanings: ClassVar = {"h": ("memory",), "f": ("forget gate", "forgets", "keeps")}

    kind: str = "minlstm"
    """Minimal LSTM whose gates read the input only (Feng et al. 2024)."""
    positive: bool = False
    """Candidates g(a) > 0, the paper's log-space form; false: a, the plain form."""
    forget_bias: Bias | None = 1.0
    """Initial bias of the forget gate; null: like the other biases."""

    def step(self, p: Parameters, x: Any, h: Any) -> Any:
        # f_t = σ(a_f), i_t = σ(a_i), h̃_t = a_h of a = W x_t + b
        f, i, candidate = p.product("weight_ih", x, 3) + p.vector("bias_ih", 3, start=(self.forget_bias, None, None))
        # f' = f / (f + i) = σ(log f − log i), which does not divide by 0 where both gates are closed
        f = sigmoid(softplus(-i) - softplus(-f))
        # g(a) = a + 0.5 for a ≥ 0, else σ(a)
        if self.positive:
            candidate = where(candidate > 0, candidate + 0.5, sigmoid(candidate))
        p.note(f=f)
        # h_t = f' ⊙ h_{t−1} + i' ⊙ h̃_t, i' = 1 − f'
        return candidate + f * (h - candidate)
