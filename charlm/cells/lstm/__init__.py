"""Long short-term memory (Hochreiter & Schmidhuber 1997), optionally layer-normalised."""

from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor

from charlm.cells.base import LayerCall, LayerState, RecurrentOptions
from charlm.cells.lstm import cpu
from charlm.cells.lstm.reference import LayerNorm, lstm_layer
from charlm.cells.torch_base import TorchRecurrentBase, single_layer_options
from charlm.native.generate import Step
from charlm.native.lookup import Lookup


class LSTM(TorchRecurrentBase):
    """c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g), h_t = σ(o) ⊙ tanh(c_t), as torch.nn.LSTM.

    Args:
        layer_norm: normalise each of i, f, g, o over its H units, and c_t inside the last tanh (after
            Ba et al. 2016), with gains that start at 1 and biases that start at 0. Adds to each layer
            `weight_ln_gates`, `bias_ln_gates` [4, H] and `weight_ln_cell`, `bias_ln_cell` [H].
        forget_bias: where the bias of the forget gate starts (Jozefowicz et al. 2015 advise 1): the
            sum of `bias_ih` and `bias_hh`, or f's row of `bias_ln_gates` with `layer_norm`, which
            would undo a bias before it. None keeps torch.nn's initialisation.
        others: see `RecurrentBase`. `state_dropout` acts on h only. `zoneout` acts on h and on c after both are new:
            the new h is computed from the new c, even where c_t keeps c_{t−1}.

    Shapes: input [T, B, I], output [T, B, H], state a pair (h, c) of [L, B, H].
    """

    kind = "lstm"
    kernel = cpu.KERNEL
    num_gates = 4
    state_names = ("h", "c")
    option_names = ("layer_norm", "forget_bias")

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
        return self.run_function(lstm_layer, x_TBI, call)

    def kernel_layer(self, x: Tensor | Lookup, call: LayerCall) -> tuple[Tensor, LayerState]:
        return self.run_function(cpu.lstm_layer, x, call)

    def run_function(self, function: Callable[..., Any], x: Any, call: LayerCall) -> tuple[Tensor, LayerState]:
        """One layer by `lstm_layer` of reference.py or of cpu.py."""
        maps, layer_norm = self.maps_and_norm(call.parameters)
        options = {"layer_norm": layer_norm, "mask_BH": call.mask_BH, "kept_TBS": call.kept_TBS}
        y_TBH, h_BH, c_BH = function(x, *call.state, *maps, **options)
        return y_TBH, (h_BH, c_BH)

    def kernel_step(self, call: LayerCall) -> Step:
        maps, layer_norm = self.maps_and_norm(call.parameters)
        return cpu.lstm_step(*call.state, *maps, layer_norm=layer_norm, kept_11S=call.kept_TBS)

    def maps_and_norm(self, parameters: list[Tensor]) -> tuple[list[Tensor], LayerNorm | None]:
        """Weights and biases of a layer, and its normalisation."""
        maps, norm = parameters[:4], parameters[4:]
        return maps, LayerNorm(*norm) if self.layer_norm else None

    @property
    def cudnn_mode(self) -> str:
        return "LSTM"

    def call_fused(self, x_TBI: Tensor, state: LayerState, parameters: list[Tensor]) -> tuple[Tensor, LayerState]:
        y_TBH, h_1BH, c_1BH = torch.lstm(x_TBI, state, parameters, *single_layer_options())
        return y_TBH, (h_1BH, c_1BH)

    def why_reference(self, device: torch.device, training: bool) -> str | None:
        if self.layer_norm:
            return "layer_norm has no fused layer"
        if self.runs_on_onednn(device) and torch.is_autocast_enabled("cpu"):
            # torch.lstm raises "could not create a primitive descriptor" there.
            dtype = torch.get_autocast_dtype("cpu")
            if not onednn_supports(dtype):
                return f"this CPU lacks {str(dtype).removeprefix('torch.')} for oneDNN"
        return super().why_reference(device, training)

    def fused_library(self, device: torch.device) -> str:
        return "oneDNN" if self.runs_on_onednn(device) else super().fused_library(device)

    def runs_on_onednn(self, device: torch.device) -> bool:
        """torch.lstm hands single-precision work on the CPU to oneDNN."""
        onednn = torch.backends.mkldnn
        single = self.weight_ih_l0.dtype == torch.float32
        return device.type == "cpu" and single and onednn.is_available() and bool(onednn.enabled)


def onednn_supports(dtype: torch.dtype) -> bool:
    """Whether oneDNN can compute in autocast's `dtype` on this CPU."""
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.ops.mkldnn._is_mkldnn_fp16_supported()
