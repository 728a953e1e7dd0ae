"""Long short-term memory (Hochreiter & Schmidhuber 1997; forget gate: Gers et al. 2000)."""

from typing import Any, ClassVar

from charlm.cells.cell import Cell
from charlm.cells.step import Parameters, sigmoid, tanh
from charlm.system.section import Bias


class LSTM(Cell):
    """c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g), h_t = σ(o) ⊙ tanh(c_t), as in torch.nn.LSTM: without peepholes.

    Layer normalization takes each gate's sum W x + R h + b + b' alone. Ba et al. (2016) normalize W x and R h, all
    gates together. With `layer_norm`, `forget_bias` sets the bias after the normalization.
    """

    states: ClassVar = ("h", "c")
    initial: ClassVar = ("forget_bias",)
    meanings: ClassVar = {
        "h": ("output",),
        "c": ("memory",),
        "i": ("input gate", "blocks", "lets in"),
        "f": ("forget gate", "forgets", "keeps"),
        "g": ("new value",),
        "o": ("output gate", "hides", "shows"),
    }

    kind: str = "lstm"
    """Long short-term memory."""
    layer_norm: bool = False
    """Layer normalization of each gate and of the cell state (after Ba et al. 2016)."""
    forget_bias: Bias | None = 1.0
    """Initial bias of the forget gate; null: like the other biases."""

    def step(self, p: Parameters, x: Any, h: Any, c: Any) -> Any:
        # i, f, g, o = W x_t + b + R h_{t−1} + b'
        a = p.linear(x, h, gates=4, start=None if self.layer_norm else (None, self.forget_bias, None, None))
        if self.layer_norm:
            a = p.layer_norm(a, "gates", of=4, start=(0.0, self.forget_bias or 0.0, 0.0, 0.0))
        i, f, g, o = a
        i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
        p.note(i=i, f=f, g=g, o=o)
        # c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g)
        c = f * c + i * g
        # h_t = σ(o) ⊙ tanh(c_t), or σ(o) ⊙ tanh(LN(c_t))
        h = o * tanh(p.layer_norm(c, "cell") if self.layer_norm else c)
        return h, c
