"""The options of each kind of cell."""

from typing import Any, Literal

from charlm.config.section import Count, Section


class Cell(Section):
    kind: Any  # each kind narrows it; declared here so that it is printed first
    hidden: Count = 256
    """Hidden units of each layer, H."""

    def options(self) -> dict[str, Any]:
        """The options that only this kind has: keyword arguments of its module in `charlm.cells`."""
        return self.model_dump(exclude={"kind", "hidden"})


class RNNConfig(Cell):
    kind: Literal["rnn"]
    """Elman network: one linear map and one nonlinearity per step."""
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    """Activation function of the state."""


class LSTMConfig(Cell):
    kind: Literal["lstm"]
    """Long short-term memory."""
    layer_norm: bool = False
    """Layer normalization of each gate, and of the cell state before its tanh (Ba et al. 2016)."""
    forget_bias: float | None = 1.0
    """Initial bias of the forget gate; null: initialized like the other biases."""


class GRUConfig(Cell):
    kind: Literal["gru"]
    """Gated recurrent unit."""


class RHNConfig(Cell):
    kind: Literal["rhn"]
    """Recurrent highway network (Zilly et al. 2017)."""
    depth: Count = 5
    """Highway layers within one time step, D."""
    couple_gates: bool = True
    """Carry gate c = 1 − g; false: a carry gate with its own weights."""
    gate_bias: float = -2.0
    """Initial bias of the transform gate g. The more negative it is, the more of the state is carried at first."""


class SLSTMConfig(Cell):
    kind: Literal["slstm"]
    """LSTM with exponential gates and scalar memory, one head (Beck et al. 2024)."""
    forget_gate: Literal["sigmoid", "exponential"] = "sigmoid"
    """Activation function of the forget gate; that of the input gate is exponential."""
    forget_bias: float = 1.0
    """Initial bias of the forget gate. For an exponential gate choose 0 or less: above, old inputs outweigh new."""


AnyCell = RNNConfig | LSTMConfig | GRUConfig | RHNConfig | SLSTMConfig
