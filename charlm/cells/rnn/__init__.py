"""The simple recurrent network (Elman 1990)."""

from pathlib import Path
from typing import Unpack, get_args

import torch
from torch import Tensor

from charlm.cells.backend import LayerCall, LayerState
from charlm.cells.base import RecurrentOptions
from charlm.cells.rnn.gates import VARIANTS
from charlm.cells.rnn.reference import Nonlinearity, rnn_layer
from charlm.cells.torch_base import TorchRecurrentBase, single_layer_options
from charlm.gpu.recurrence import TensorRecurrence
from charlm.native.recurrence import LayerWeights, Recurrence


class RNN(TorchRecurrentBase):
    """h_t = φ(W_xh x_t + b_x + W_hh h_{t−1} + b_h), as in torch.nn.RNN.

    Args:
        nonlinearity: φ, "tanh" or "relu".
        others: see `RecurrentBase`.

    Shapes: input [T, B, I], output [T, B, H], state [L, B, H].
    """

    kind = "rnn"
    cpu_kernel = Recurrence(Path(__file__).parent)
    gpu_kernel = TensorRecurrence(VARIANTS)
    num_gates = 1
    option_names = ("nonlinearity",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        nonlinearity: Nonlinearity = "tanh",
        **others: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, **others)
        self.check_choice(get_args(Nonlinearity), nonlinearity=nonlinearity)
        self.nonlinearity: Nonlinearity = nonlinearity
        self.create_parameters()

    def reference_layer(self, x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
        y_TBH, h_BH = rnn_layer(
            x_TBI,
            *call.state,
            *call.parameters,
            nonlinearity=self.nonlinearity,
            mask_BH=call.mask_BH,
            kept_TBH=call.kept_TBS,
            seen=call.seen,
        )
        return y_TBH, (h_BH,)

    def layer_weights(self, parameters: list[Tensor]) -> LayerWeights:
        w_ih_HI, w_hh_HH, b_ih_H, b_hh_H = parameters
        variant = get_args(Nonlinearity).index(self.nonlinearity)
        return LayerWeights(w_ih_HI, b_ih_H + b_hh_H, w_hh_HH, variant=variant)

    @property
    def cudnn_mode(self) -> str:
        return f"RNN_{self.nonlinearity.upper()}"

    def call_torch(self, x_TBI: Tensor, state: LayerState, parameters: list[Tensor]) -> tuple[Tensor, LayerState]:
        operator = torch.rnn_tanh if self.nonlinearity == "tanh" else torch.rnn_relu
        (h_1BH,) = state
        y_TBH, h_1BH = operator(x_TBI, h_1BH, parameters, *single_layer_options())
        return y_TBH, (h_1BH,)
