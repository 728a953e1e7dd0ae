"""The gated recurrent unit (Cho et al. 2014)."""

import torch
from torch import Tensor

from charlm.cells.base import LayerState
from charlm.cells.gru import cpu
from charlm.cells.gru.reference import gru_layer
from charlm.cells.lookup import Lookup
from charlm.cells.native.generate import Step
from charlm.cells.torch_fused import TorchFusedStack, single_layer_options


class GRU(TorchFusedStack):
    """Gates r (reset) and z (update), candidate n, h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}, as torch.nn.GRU.

    Args: see `Stack`. `state_dropout` spares the h_{t−1} that z carries over.

    Shapes: input [T, B, I], output [T, B, H], state [L, B, H].
    """

    kind = "gru"
    kernel = cpu.KERNEL
    num_gates = 3

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        state_dropout: float = 0.0,
        variational: bool = False,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            dropout=dropout,
            state_dropout=state_dropout,
            variational=variational,
        )
        self.create_parameters()

    def reference_layer(
        self, layer: int, x_TBI: Tensor, state: LayerState, mask_BH: Tensor | None
    ) -> tuple[Tensor, LayerState]:
        y_TBH, h_BH = gru_layer(x_TBI, *state, *self.layer_parameters(layer), mask_BH=mask_BH)
        return y_TBH, (h_BH,)

    def kernel_layer(
        self, layer: int, x: Tensor | Lookup, state: LayerState, mask_BH: Tensor | None
    ) -> tuple[Tensor, LayerState]:
        y_TBH, h_BH = cpu.gru_layer(x, *state, *self.layer_parameters(layer), mask_BH=mask_BH)
        return y_TBH, (h_BH,)

    def kernel_step(self, layer: int, state: LayerState) -> Step:
        return cpu.gru_step(*state, *self.layer_parameters(layer))

    @property
    def cudnn_mode(self) -> str:
        return "GRU"

    def call_fused(self, x_TBI: Tensor, state: LayerState, parameters: list[Tensor]) -> tuple[Tensor, LayerState]:
        (h_1BH,) = state
        y_TBH, h_1BH = torch.gru(x_TBI, h_1BH, parameters, *single_layer_options())
        return y_TBH, (h_1BH,)
