"""Torch's own operators for the kinds of torch.nn: oneDNN or ATen computes them on the CPU, cuDNN or ATen on a GPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from charlm.cells import GRU, LSTM, RNN, Cell
from charlm.layers.backend import Backend, LayerCall, LayerState
from charlm.native.call import without_autocast

if TYPE_CHECKING:
    from charlm.layers.stack import RecurrentLayers


def has_operator(cell: Cell) -> bool:
    """Whether torch.nn has the kind, with the same names, shapes and gate order of its parameters."""
    return type(cell) in (RNN, LSTM, GRU)  # a class that inherits from one may have another step


class TorchOperator:
    """Computes layers of such a kind by torch's operator, which has neither state dropout nor zoneout."""

    def __init__(self, layers: "RecurrentLayers") -> None:
        self.layers, self.cell = layers, layers.cell

    def backend(self, device: torch.device) -> Backend:
        return Backend("fused torch layer", self.layer, self.why_not, library=partial(self.library, device))

    def why_not(self, device: torch.device, training: bool) -> str | None:
        """Why torch's operator cannot compute these layers, or None if it can."""
        if getattr(self.cell, "layer_norm", False):
            return "it lacks layer_norm"
        if isinstance(self.cell, LSTM) and self._runs_on_onednn(device) and torch.is_autocast_enabled("cpu"):
            # Without support, torch.lstm raises "could not create a primitive descriptor".
            dtype = torch.get_autocast_dtype("cpu")
            if not onednn_supports(dtype):
                return f"oneDNN lacks {str(dtype).removeprefix('torch.')} on this CPU"
        if training and self.layers.state_dropout > 0:
            return "it lacks state_dropout"
        if self.layers.zoneout > 0:
            return "it lacks zoneout"
        return None

    def library(self, device: torch.device) -> str:
        """The library that computes torch's operator on `device`."""
        if self._runs_on_onednn(device):
            return "oneDNN"
        cudnn = torch.backends.cudnn
        return "cuDNN" if device.type == "cuda" and cudnn.enabled and cudnn.is_available() else "ATen"

    def _runs_on_onednn(self, device: torch.device) -> bool:
        """Whether torch calls oneDNN: for the LSTM on the CPU in single precision."""
        onednn = torch.backends.mkldnn
        single = next(self.layers.parameters()).dtype == torch.float32
        is_cpu_lstm = isinstance(self.cell, LSTM) and device.type == "cpu"
        return is_cpu_lstm and single and onednn.is_available() and bool(onednn.enabled)

    def layer(self, x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
        """One layer."""
        assert call.mask_BH is None
        assert call.zoneout_TBS is None
        parameters = list(call.parameters.values())
        # cuDNN rejects a state that is not contiguous.
        state = tuple(s_BH[None].contiguous() for s_BH in call.state)
        # Autocast would run cuDNN's layers in float16, whatever dtype it is asked for (torch's AutocastRNN.cpp), and
        # float16 overflows. They compute in float32 instead, in TF32 as `prepare_device` sets it.
        on_gpu = x_TBI.device.type != "cpu"
        with without_autocast(x_TBI.device) if on_gpu else nullcontext():
            if all(isinstance(parameter, nn.Parameter) for parameter in parameters):
                self._flatten_for_cudnn(parameters)
                y_TBH, last = self._call(x_TBI, state, parameters)
            else:
                # With weight dropout the weights are new tensors at every call. Flattening would copy them once;
                # cuDNN makes the same copy by itself, with a warning.
                with ignored_chunk_warning():
                    y_TBH, last = self._call(x_TBI, state, parameters)
        # Under autocast some operators return bfloat16, and torch rejects mixed dtypes in the next layer.
        dtype = call.state[0].dtype
        return y_TBH.to(dtype), tuple(s_1BH[0].to(dtype) for s_1BH in last)

    def _call(self, x_TBI: Tensor, state: LayerState, parameters: list[Tensor]) -> tuple[Tensor, LayerState]:
        """Call torch's operator for one layer; state tensors are [1, B, H] here."""
        if isinstance(self.cell, LSTM):
            y_TBH, *last = torch.lstm(x_TBI, state, parameters, *single_layer_options())
            return y_TBH, tuple(last)
        functions = {"GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}
        (h_1BH,) = state
        y_TBH, h_1BH = functions[self._cudnn_mode](x_TBI, h_1BH, parameters, *single_layer_options())
        return y_TBH, (h_1BH,)

    @property
    def _cudnn_mode(self) -> str:
        """The name in `torch.backends.cudnn.rnn.get_cudnn_mode`."""
        return f"RNN_{self.cell.nonlinearity.upper()}" if isinstance(self.cell, RNN) else self.cell.kind.upper()

    def _flatten_for_cudnn(self, parameters: list[Tensor]) -> None:
        """Move one layer's weights into a single buffer; otherwise cuDNN copies them at every call.

        Does what torch.nn's `flatten_parameters` does, but checks at every call: moving or copying a module gives
        its weights separate buffers again. Only the storage of the Parameters changes, so the optimizer's
        references stay valid.
        """
        if not parameters[0].is_cuda or not torch._use_cudnn_rnn_flatten_weight():  # pyright: ignore[reportPrivateImportUsage]
            return
        if not all(torch.backends.cudnn.is_acceptable(w) for w in parameters):
            return
        if len({w.untyped_storage().data_ptr() for w in parameters}) == 1:
            return
        # Imported here because this module needs CUDA's bindings.
        from torch.backends.cudnn.rnn import get_cudnn_mode

        with torch.no_grad(), torch.cuda.device_of(parameters[0]):
            torch._cudnn_rnn_flatten_weight(  # pyright: ignore[reportPrivateImportUsage]
                parameters,
                len(parameters),
                parameters[0].shape[1],  # input_size
                get_cudnn_mode(self._cudnn_mode),
                self.cell.hidden,
                0,  # proj_size
                1,  # num_layers
                False,  # batch_first
                False,  # bidirectional
            )


@contextmanager
def ignored_chunk_warning() -> Iterator[None]:
    """Suppresses torch's warning that cuDNN copies the weights."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield


def single_layer_options() -> tuple[bool, int, float, bool, bool, bool]:
    """The arguments after the parameters of torch's operators, for a single layer."""
    has_biases, num_layers, dropout, bidirectional, batch_first = True, 1, 0.0, False, False
    # `train` makes cuDNN and oneDNN save what the backward pass needs. Gradients need that in eval mode, too.
    train = torch.is_grad_enabled()
    return has_biases, num_layers, dropout, train, bidirectional, batch_first


def onednn_supports(dtype: torch.dtype) -> bool:
    """Whether oneDNN can compute in `dtype` on this CPU."""
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.ops.mkldnn._is_mkldnn_fp16_supported()
