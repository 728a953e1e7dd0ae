"""The simple recurrent unit (Lei et al. 2018, arXiv:1709.02755)."""

import math
from typing import Any, ClassVar

from charlm.cells.cell import Cell
from charlm.cells.step import Parameters, rms_normalize, sigmoid
from charlm.system.section import Bias


class SRU(Cell):
    """c_t = f ⊙ c_{t−1} + (1 − f) ⊙ u, h_t = r ⊙ c_t + (1 − r) ⊙ α x_t; only the gates f and r see c_{t−1}.

    In a layer with as many inputs as units, the input takes the place of the last product. α = √(1 + 2 e^highway_bias)
    gives h the same variance in all layers at first (section 3.2).
    """

    states: ClassVar = ("h", "c")
    meanings: ClassVar = {
        "h": ("output",),
        "c": ("memory",),
        "f": ("forget gate", "forgets", "keeps"),
        "r": ("reset gate", "shows the input", "shows the memory"),
    }

    kind: str = "sru"
    """Simple recurrent unit (Lei et al. 2018)."""
    normalize: bool = True
    """RMS normalization, with a learned gain, of the products' input."""
    highway_bias: Bias = 0.0
    """Initial bias of gate r, which also scales the input. A lower bias passes on more input."""

    def step(self, p: Parameters, x: Any, h: Any, c: Any) -> Any:
        read = rms_normalize(x) * p.vector("weight_ln_input", start=1.0, size="I") if self.normalize else x
        u, f, r, *highway = p.product("weight_ih", read, 3 if p.square else 4)
        # variance 1/2, as in the authors' code
        v_f, v_r = p.vector("peephole", 2, bound=math.sqrt(1.5))
        b_f, b_r = p.vector("bias", 2, start=(0.0, self.highway_bias))
        # f_t = σ(W_f x_t + v_f ⊙ c_{t−1} + b_f)                        (1)
        f = sigmoid(f + b_f + v_f * c)
        # r_t = σ(W_r x_t + v_r ⊙ c_{t−1} + b_r)                        (3)
        r = sigmoid(r + b_r + v_r * c)
        # c_t = f_t ⊙ c_{t−1} + (1 − f_t) ⊙ u_t, u_t = W x_t            (2)
        c = u + f * (c - u)
        # h_t = r_t ⊙ c_t + (1 − r_t) ⊙ α x_t                           (4)
        x = math.sqrt(1 + 2 * math.exp(self.highway_bias)) * (x if p.square else highway[0])
        p.note(f=f, r=r)
        return x + r * (c - x), c
