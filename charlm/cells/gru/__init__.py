"""The gated recurrent unit (Cho et al. 2014)."""

from pathlib import Path
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from charlm.cells.backend import LayerCall, LayerState
from charlm.cells.base import RecurrentOptions
from charlm.cells.gru.gates import VARIANTS
from charlm.cells.gru.reference import gru_layer
from charlm.cells.torch_base import TorchRecurrentBase, single_layer_options
from charlm.gpu.recurrence import TensorRecurrence
from charlm.native.recurrence import LayerWeights, Recurrence


class GRU(TorchRecurrentBase):
    """Gates r (reset) and z (update), candidate n; h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}, as in torch.nn.GRU.

    Args: see `RecurrentBase`. `state_dropout` does not act on the h_{t−1} that z carries over.

    Shapes: input [T, B, I], output [T, B, H], state [L, B, H].
    """

    kind = "gru"
    cpu_kernel = Recurrence(Path(__file__).parent)
    gpu_kernel = TensorRecurrence(VARIANTS)
    num_gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        **others: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, **others)
        self.create_parameters()

    def reference_layer(self, x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
        y_TBH, h_BH = gru_layer(
            x_TBI,
            *call.state,
            *call.parameters,
            mask_BH=call.mask_BH,
            kept_TBH=call.kept_TBS,
            seen=call.seen,
        )
        return y_TBH, (h_BH,)

    def layer_weights(self, parameters: list[Tensor]) -> LayerWeights:
        w_ih_GI, w_hh_GH, b_ih_G, b_hh_G = parameters
        H = self.hidden_size
        # The biases of r and z can be added to the inputs; that of n, whose two parts stay apart, cannot.
        return LayerWeights(w_ih_GI, b_ih_G + F.pad(b_hh_G[: 2 * H], (0, H)), w_hh_GH, b_hh_G)

    @classmethod
    def least_saved_per_unit(cls, **options: Any) -> int:
        return 5  # the output, r, z, n, and W_hn h + b_hn

    @property
    def cudnn_mode(self) -> str:
        return "GRU"

    def call_torch(self, x_TBI: Tensor, state: LayerState, parameters: list[Tensor]) -> tuple[Tensor, LayerState]:
        (h_1BH,) = state
        y_TBH, h_1BH = torch.gru(x_TBI, h_1BH, parameters, *single_layer_options())
        return y_TBH, (h_1BH,)
