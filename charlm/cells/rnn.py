"""The simple recurrent network (Elman 1990)."""

from typing import Any, ClassVar, Literal

from charlm.cells.cell import Cell
from charlm.cells.step import Parameters, relu, tanh


class RNN(Cell):
    """h_t = φ(W x_t + b + R h_{t−1} + b'), as in torch.nn.RNN."""

    meanings: ClassVar = {"h": ("memory",)}

    kind: str = "rnn"
    """Elman network."""
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    """Activation function of the state."""

    def step(self, p: Parameters, x: Any, h: Any) -> Any:
        activation = tanh if self.nonlinearity == "tanh" else relu
        # h_t = φ(W x_t + b + R h_{t−1} + b')
        return activation(p.linear(x, h))
