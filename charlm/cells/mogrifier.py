"""The Mogrifier LSTM (Melis et al. 2020, arXiv:1909.01792)."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from charlm.cells.cell import Cell
from charlm.cells.lstm import LSTM
from charlm.cells.program import Size
from charlm.cells.step import Parameters, sigmoid, tanh
from charlm.system.section import Bias, Whole


class Mogrifier(Cell):
    """An LSTM before whose step x_t and h_{t−1} scale each other in turn, r times; with r = 0 the LSTM itself."""

    states: ClassVar = LSTM.states
    initial: ClassVar = LSTM.initial
    meanings: ClassVar = LSTM.meanings

    kind: str = "mogrifier"
    """LSTM whose input and state scale each other (Melis et al. 2020)."""
    rounds: Annotated[int, Field(ge=0, le=100), Whole] = 5
    """Rounds before each step: odd ones scale the input, even ones the state."""
    rank: Annotated[int, Field(ge=0, le=10_000), Whole] = 0
    """Rank of the rounds' matrices; 0: full matrices."""
    forget_bias: Bias | None = 1.0
    """Initial bias of the forget gate; null: like the other biases."""

    def step(self, p: Parameters, x: Any, h: Any, c: Any) -> Any:
        for i in range(1, self.rounds + 1):
            if i % 2 == 1:
                # x^i = 2σ(Q^i h^{i−1}) ⊙ x^{i−2} for odd i             (1)
                x = 2 * sigmoid(self.map(p, "weight_q", h, i // 2, (self.rounds + 1) // 2, size="I")) * x
            else:
                # h^i = 2σ(R^i x^{i−1}) ⊙ h^{i−2} for even i            (2)
                h = 2 * sigmoid(self.map(p, "weight_r", x, i // 2 - 1, self.rounds // 2, size="H")) * h
        # i, f, g, o = W x + b + R h + b'
        i, f, g, o = p.linear(x, h, gates=4, start=(None, self.forget_bias, None, None))
        i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
        p.note(i=i, f=f, g=g, o=o)
        # c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g)
        c = f * c + i * g
        # h_t = σ(o) ⊙ tanh(c_t)
        return o * tanh(c), c

    def map(self, p: Parameters, name: str, operand: Any, index: int, of: int, size: Size) -> Any:
        """Matrix `index` of Q or R, or both of its factors, times a vector."""
        if self.rank:
            operand = p.product(f"{name}_right", operand, index=index, of=of, size=self.rank)
            name = f"{name}_left"
        return p.product(name, operand, index=index, of=of, size=size)
