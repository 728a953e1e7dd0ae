"""The LSTM with exponential gates and scalar memory, one head (Beck et al. 2024, arXiv:2405.04517)."""

from typing import Any, ClassVar, Literal

from charlm.cells.cell import Cell
from charlm.cells.step import Parameters, exp, log_sigmoid, maximum, sigmoid, stop_gradient, tanh
from charlm.system.section import Bias

LEAST = 2e-38
"""Of the stabilized gates; float32 holds it with full precision."""


class SLSTM(Cell):
    """c_t = f ⊙ c_{t−1} + i ⊙ tanh(z), n_t = f ⊙ n_{t−1} + i, h_t = σ(o) ⊙ c_t / n_t with i = exp(a_i).

    n normalizes c. m keeps c and n in the range of float32: it scales both by e^−m, and c / n stays the same. So h has
    no gradient through m. Gates below 2e−38 count as 2e−38, which keeps n above 0.
    """

    states: ClassVar = ("h", "c", "n", "m")
    internal: ClassVar = ("c", "n", "m")
    initial: ClassVar = ("forget_bias",)
    meanings: ClassVar = {
        "h": ("output",),
        "c": ("memory",),
        "i": ("input gate", "blocks", "lets in"),
        "f": ("forget gate", "forgets", "keeps"),
        "o": ("output gate", "hides", "shows"),
    }

    kind: str = "slstm"
    """LSTM with exponential gates (Beck et al. 2024)."""
    forget_gate: Literal["sigmoid", "exponential"] = "sigmoid"
    """Activation function of the forget gate; the input gate's is exponential."""
    forget_bias: Bias = 1.0
    """Initial bias of the forget gate; above 0, an exponential gate lets old inputs outweigh new."""

    def step(self, p: Parameters, x: Any, h: Any, c: Any, n: Any, m: Any) -> Any:
        # a = W x_t + b + R h_{t−1}, for i, f, z and o
        bias = p.vector("bias", 4, start=(None, self.forget_bias, None, None))
        i, f, z, o = p.product("weight_ih", x, 4) + bias + p.product("weight_hh", h, 4)
        # i_t = exp(a_i), f_t = σ(a_f) or exp(a_f)                        (12), (13)
        log_f = log_sigmoid(f) if self.forget_gate == "sigmoid" else f
        # m_t = max(log f_t + m_{t−1}, log i_t)                           (15)
        old = log_f + m
        m = stop_gradient(maximum(old, i))
        # i'_t = exp(log i_t − m_t), f'_t = exp(log f_t + m_{t−1} − m_t)  (16), (17)
        i = maximum(exp(i - m), LEAST)
        f = maximum(exp(old - m), LEAST)
        # c_t = f'_t ⊙ c_{t−1} + i'_t ⊙ z_t, z_t = tanh(a_z)              (8), (11)
        c = f * c + i * tanh(z)
        # n_t = f'_t ⊙ n_{t−1} + i'_t                                     (9)
        n = f * n + i
        # h_t = o_t ⊙ c_t / n_t, o_t = σ(a_o)                             (10), (14)
        o = sigmoid(o)
        # i', f' and c depend on the scale e^−m; shares of n and c / n do not.
        p.note(i=i / n, f=1 - i / n, o=o)
        p.show(c=c / n)
        return o * (c / n), c, n, m
