"""Kinds of cells with an operator in torch: oneDNN or ATen computes it on the CPU, cuDNN or ATen on a GPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from charlm.cells.backend import Backend, LayerCall, LayerState
from charlm.cells.base import RecurrentBase
from charlm.native.call import without_autocast


class TorchRecurrentBase(RecurrentBase):
    """A kind with the parameters of torch.nn's RNN, LSTM or GRU: the same names, shapes and gate order.

    `load_state_dict` moves weights to and from torch.nn. Adds torch's fused operator to the backends; it supports
    neither state dropout nor zoneout.
    """

    num_gates: ClassVar[int]

    # What a kind of cell defines

    @property
    def cudnn_mode(self) -> str:
        """The kind's name in `torch.backends.cudnn.rnn.get_cudnn_mode`."""
        raise NotImplementedError

    def call_torch(self, x_TBI: Tensor, state: LayerState, parameters: list[Tensor]) -> tuple[Tensor, LayerState]:
        """Call torch's operator for one layer; state tensors are [1, B, H] here."""
        raise NotImplementedError

    def why_not_torch(self, device: torch.device, training: bool) -> str | None:
        """Why torch's operator cannot compute this layer, or None if it can."""
        if training and self.state_dropout > 0:
            return "it lacks state_dropout"
        if self.zoneout > 0:
            return "it lacks zoneout"
        return None

    def torch_library(self, device: torch.device) -> str:
        """The library that computes torch's operator on `device`."""
        cudnn = torch.backends.cudnn
        return "cuDNN" if device.type == "cuda" and cudnn.enabled and cudnn.is_available() else "ATen"

    # What all of them share

    def parameter_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        rows, H = self.num_gates * self.hidden_size, self.hidden_size
        return {
            "weight_ih": (rows, self.layer_input_size(layer)),
            "weight_hh": (rows, H),
            "bias_ih": (rows,),
            "bias_hh": (rows,),
        }

    def backends(self, device: torch.device) -> list[Backend]:
        own, reference = super().backends(device)
        library = partial(self.torch_library, device)
        operator = Backend("fused torch layer", self.torch_layer, self.why_not_torch, library=library)
        return [own, operator, reference] if device.type == "cpu" else [operator, own, reference]

    def torch_layer(self, x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
        """One layer by torch's operator, which has no state dropout and no zoneout."""
        assert call.mask_BH is None
        assert call.kept_TBS is None
        # cuDNN rejects a state that is not contiguous.
        state = tuple(s_BH[None].contiguous() for s_BH in call.state)
        # Autocast would run cuDNN's layers in float16, whatever dtype it is asked for (torch's AutocastRNN.cpp), and
        # float16 overflows. They compute in float32 instead, in TF32 as `prepare_device` sets it.
        on_gpu = x_TBI.device.type != "cpu"
        with without_autocast(x_TBI.device) if on_gpu else nullcontext():
            if all(isinstance(parameter, nn.Parameter) for parameter in call.parameters):
                self.flatten_for_cudnn(call.parameters)
                y_TBH, last = self.call_torch(x_TBI, state, call.parameters)
            else:
                # With weight dropout the weights are new tensors at every call. Flattening would copy them once;
                # cuDNN makes the same copy by itself, with a warning.
                with ignored_chunk_warning():
                    y_TBH, last = self.call_torch(x_TBI, state, call.parameters)
        # Under autocast some operators return bfloat16, and torch rejects mixed dtypes in the next layer.
        dtype = call.state[0].dtype
        return y_TBH.to(dtype), tuple(s_1BH[0].to(dtype) for s_1BH in last)

    def flatten_for_cudnn(self, parameters: list[Tensor]) -> None:
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
                get_cudnn_mode(self.cudnn_mode),
                self.hidden_size,
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
