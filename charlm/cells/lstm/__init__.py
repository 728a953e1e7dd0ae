"""Long short-term memory (Hochreiter & Schmidhuber 1997), optionally with layer normalization."""

from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from charlm.cells.backend import LayerCall, LayerState
from charlm.cells.base import RecurrentOptions
from charlm.cells.lstm.gates import VARIANTS
from charlm.cells.lstm.reference import LAYER_NORM_EPS, LayerNorm, lstm_layer
from charlm.cells.torch_base import TorchRecurrentBase, single_layer_options
from charlm.gpu.recurrence import TensorRecurrence
from charlm.native.recurrence import LayerWeights, Recurrence


class LSTM(TorchRecurrentBase):
    """c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g), h_t = σ(o) ⊙ tanh(c_t), as in torch.nn.LSTM.

    Args:
        layer_norm: normalize each of i, f, g, o over its H units, and c_t inside the last tanh (after
            Ba et al. 2016). Each layer gains the parameters `weight_ln_gates`, `bias_ln_gates` [4, H] and
            `weight_ln_cell`, `bias_ln_cell` [H]; gains start at 1 and biases at 0.
        forget_bias: initial bias of the forget gate (Jozefowicz et al. 2015 advise 1). It is the sum of `bias_ih`
            and `bias_hh`, or with `layer_norm` f's row of `bias_ln_gates`, because normalization cancels a bias
            that comes before it. None keeps torch.nn's initialization.
        others: see `RecurrentBase`. `state_dropout` acts on h only. `zoneout` acts on h and on c after both are new:
            the new h is computed from the new c, even where c_t keeps c_{t−1}.

    Shapes: input [T, B, I], output [T, B, H], state a pair (h, c) of [L, B, H].
    """

    kind = "lstm"
    cpu_kernel = Recurrence(Path(__file__).parent)
    gpu_kernel = TensorRecurrence(VARIANTS)
    num_gates = 4
    state_names = ("h", "c")
    option_names = ("layer_norm", "forget_bias")
    initial_options = ("forget_bias",)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        layer_norm: bool = False,
        forget_bias: float | None = 1.0,
        **others: Unpack[RecurrentOptions],
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, **others)
        self.check_choice((False, True), layer_norm=layer_norm)
        if forget_bias is not None:
            self.check_finite(forget_bias=forget_bias)
        self.layer_norm = layer_norm
        self.forget_bias = forget_bias
        self.create_parameters()

    def parameter_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        shapes = super().parameter_shapes(layer)
        if self.layer_norm:
            H = self.hidden_size
            shapes |= {"weight_ln_gates": (4, H), "bias_ln_gates": (4, H)}
            shapes |= {"weight_ln_cell": (H,), "bias_ln_cell": (H,)}
        return shapes

    def set_special_biases(self) -> None:
        if self.forget_bias is None:
            return
        f = slice(self.hidden_size, 2 * self.hidden_size)
        for layer in range(self.num_layers):
            if self.layer_norm:
                self.get_parameter(f"bias_ln_gates_l{layer}")[1] = self.forget_bias
            else:
                self.get_parameter(f"bias_ih_l{layer}")[f] = self.forget_bias
                self.get_parameter(f"bias_hh_l{layer}")[f] = 0

    def reference_layer(self, x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
        maps, norm = call.parameters[:4], call.parameters[4:]
        y_TBH, h_BH, c_BH = lstm_layer(
            x_TBI,
            *call.state,
            *maps,
            layer_norm=LayerNorm(*norm) if norm else None,
            mask_BH=call.mask_BH,
            kept_TBS=call.kept_TBS,
            seen=call.seen,
        )
        return y_TBH, (h_BH, c_BH)

    def layer_weights(self, parameters: list[Tensor]) -> LayerWeights:
        w_ih_GI, w_hh_GH, b_ih_G, b_hh_G, *norm = parameters
        weights = LayerWeights(w_ih_GI, b_ih_G + b_hh_G, w_hh_GH, epsilon=LAYER_NORM_EPS)
        if not norm:
            return weights
        gain_gates_4H, bias_gates_4H, gain_cell_H, bias_cell_H = norm
        gains_5H = torch.cat([gain_gates_4H, gain_cell_H[None]])
        biases_5H = torch.cat([bias_gates_4H, bias_cell_H[None]])
        return weights._replace(norm=(gains_5H, biases_5H), variant=1)

    @classmethod
    def least_saved_per_unit(cls, **options: Any) -> int:
        return 6  # h, c and four gates

    @property
    def cudnn_mode(self) -> str:
        return "LSTM"

    def call_torch(self, x_TBI: Tensor, state: LayerState, parameters: list[Tensor]) -> tuple[Tensor, LayerState]:
        y_TBH, h_1BH, c_1BH = torch.lstm(x_TBI, state, parameters, *single_layer_options())
        return y_TBH, (h_1BH, c_1BH)

    def why_not_torch(self, device: torch.device, training: bool) -> str | None:
        if self.layer_norm:
            return "it lacks layer_norm"
        if self.runs_on_onednn(device) and torch.is_autocast_enabled("cpu"):
            # Without support, torch.lstm raises "could not create a primitive descriptor".
            dtype = torch.get_autocast_dtype("cpu")
            if not onednn_supports(dtype):
                return f"oneDNN lacks {str(dtype).removeprefix('torch.')} on this CPU"
        return super().why_not_torch(device, training)

    def torch_library(self, device: torch.device) -> str:
        return "oneDNN" if self.runs_on_onednn(device) else super().torch_library(device)

    def runs_on_onednn(self, device: torch.device) -> bool:
        """Whether torch.lstm calls oneDNN: on the CPU in single precision."""
        onednn = torch.backends.mkldnn
        single = self.weight_ih_l0.dtype == torch.float32
        return device.type == "cpu" and single and onednn.is_available() and bool(onednn.enabled)


def onednn_supports(dtype: torch.dtype) -> bool:
    """Whether oneDNN can compute in `dtype` on this CPU."""
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.ops.mkldnn._is_mkldnn_fp16_supported()
