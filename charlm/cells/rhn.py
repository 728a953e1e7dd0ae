"""The recurrent highway network (Zilly et al. 2017, arXiv:1607.03474)."""

from typing import Any, ClassVar

from charlm.cells.cell import Cell
from charlm.cells.step import Parameters, sigmoid, tanh
from charlm.system.section import Bias, Few


class RHN(Cell):
    """s_d = h_d ⊙ g_d + s_{d−1} ⊙ c_d for d = 1…D within a step; s_D is the output and the next s_0.

    g is the paper's transform gate t. Only the first layer reads the input. With `couple_gates` false, the bias of the
    carry gate starts at −gate_bias, so both forms carry the same share at first.
    """

    states: ClassVar = ("s",)
    initial: ClassVar = ("gate_bias",)
    meanings: ClassVar = {
        "s": ("memory",),
        "g": ("transform gate", "blocks", "lets in"),
        "c": ("carry gate", "forgets", "keeps"),
    }

    kind: str = "rhn"
    """Recurrent highway network (Zilly et al. 2017)."""
    depth: Few = 5
    """Highway layers per step, D."""
    couple_gates: bool = True
    """Carry gate c = 1 − g; false: a carry gate with its own weights."""
    gate_bias: Bias = -2.0
    """Initial bias of the transform gate g. A lower bias carries more of the state."""

    def step(self, p: Parameters, x: Any, s: Any) -> Any:
        gates = 2 if self.couple_gates else 3
        start = (None, self.gate_bias, -self.gate_bias)[:gates]
        for d in range(self.depth):
            # W x [d = 1] + b_d + R_d s_{d−1}, for h, g and c
            a = p.vector("bias_hh", gates, start=start, index=d, of=self.depth)
            if d == 0:
                a = p.product("weight_ih", x, gates) + a
            a = a + p.product("weight_hh", s, gates, index=d, of=self.depth)
            h, g, *c = a
            h = tanh(h)  # (7)
            g = sigmoid(g)  # (8)
            # s_d = h_d ⊙ g_d + s_{d−1} ⊙ c_d, c_d = 1 − g_d or σ     (6), (9)
            if self.couple_gates:
                s = s + g * (h - s)
                p.note(**{f"g{d + 1}": g})
            else:
                c = sigmoid(c[0])
                s = h * g + s * c
                p.note(**{f"g{d + 1}": g, f"c{d + 1}": c})
            if d + 1 < self.depth:
                p.show(**{f"s{d + 1}": s})
        return s
