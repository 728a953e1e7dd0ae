"""Stacks whose layers torch's own fused operators can run: oneDNN or ATen on the CPU, cuDNN on a GPU."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn

from charlm.cells.base import Implementation, LayerCall, LayerState, RecurrentBase


class TorchRecurrentBase(RecurrentBase):
    """A stack with the parameters of torch.nn's RNN, LSTM or GRU: the same names, shapes, gate order.

    Weights move to and from torch.nn by `load_state_dict`. A layer runs on torch's fused operator
    wherever that computes the kind's equations, else on the reference.
    """

    num_gates: ClassVar[int]

    # What a kind of cell defines

    @property
    def cudnn_mode(self) -> str:
        """The kind's name in `torch.backends.cudnn.rnn.get_cudnn_mode`."""
        raise NotImplementedError

    def call_fused(self, x_TBI: Tensor, state: LayerState, parameters: list[Tensor]) -> tuple[Tensor, LayerState]:
        """Torch's operator for one layer; state tensors are [1, B, H] here."""
        raise NotImplementedError

    def why_reference(self, device: torch.device, training: bool) -> str | None:
        """Why torch's fused operator cannot compute this layer; None if it can."""
        if training and self.state_dropout > 0:
            return "state_dropout has no fused layer"
        if self.zoneout > 0:
            return "zoneout has no fused layer"
        return None

    def fused_library(self, device: torch.device) -> str:
        """Who computes torch's fused operator."""
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

    def choose_other(self, device: torch.device, training: bool) -> Implementation:
        if reason := self.why_reference(device, training):
            return Implementation(self.reference_layer, f"{self.kind}: reference loop ({reason})")
        library = self.fused_library(device)
        return Implementation(self.fused_layer, f"{self.kind}: torch's fused layer ({library})")

    def fused_layer(self, x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
        """One layer by torch's fused operator, which knows no mask of the state and no zoneout."""
        assert call.mask_BH is None
        assert call.kept_TBS is None
        # cuDNN refuses a state that is not contiguous.
        state = tuple(s_BH[None].contiguous() for s_BH in call.state)
        if all(isinstance(parameter, nn.Parameter) for parameter in call.parameters):
            self.flatten_for_cudnn(call.parameters)
            y_TBH, last = self.call_fused(x_TBI, state, call.parameters)
        else:
            # Dropped weights are new at every call: to lay them out in one buffer is to copy them, as cuDNN then does.
            with unwarned_of_chunks():
                y_TBH, last = self.call_fused(x_TBI, state, call.parameters)
        # Under autocast some operators answer in bfloat16, and torch refuses mixed inputs above them.
        dtype = call.state[0].dtype
        return y_TBH.to(dtype), tuple(s_1BH[0].to(dtype) for s_1BH in last)

    def flatten_for_cudnn(self, parameters: list[Tensor]) -> None:
        """Move one layer's weights into a single buffer, without which cuDNN copies them at every call.

        As torch.nn's `flatten_parameters`, but at need: moving or copying a module parts its weights
        again. The Parameters stay the same objects, so an optimiser's references stay true; only
        their storage changes.
        """
        if not parameters[0].is_cuda or not torch._use_cudnn_rnn_flatten_weight():  # pyright: ignore[reportPrivateImportUsage]
            return
        if not all(torch.backends.cudnn.is_acceptable(w) for w in parameters):
            return
        if len({w.untyped_storage().data_ptr() for w in parameters}) == 1:
            return
        # Imported here because the module reads CUDA's bindings.
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
def unwarned_of_chunks() -> Iterator[None]:
    """Without torch's warning that cuDNN copies the weights."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield


def single_layer_options() -> tuple[bool, int, float, bool, bool, bool]:
    """The arguments of torch's fused operators that follow the parameters, for a single layer."""
    has_biases, num_layers, dropout, bidirectional, batch_first = True, 1, 0.0, False, False
    # `train` makes cuDNN and oneDNN keep what backward needs: wanted in eval mode too, if with gradients.
    train = torch.is_grad_enabled()
    return has_biases, num_layers, dropout, train, bidirectional, batch_first
