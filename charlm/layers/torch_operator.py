"""Torch's own operators for the kinds of torch.nn: oneDNN or ATen computes them on the CPU, cuDNN or ATen on a GPU."""

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from charlm.cells import GRU, LSTM, RNN, Cell
from charlm.cells.program import START
from charlm.layers.backend import Backend, LayerCall, LayerState, Task
from charlm.system.device import without_autocast

_STEPS: dict[type[Cell], Any] = {kind: kind.step for kind in (RNN, LSTM, GRU)}
"""What torch's operators compute."""


def torch_backends(task: Task, device: torch.device) -> list[Backend]:
    """Torch's operator for these layers, if torch.nn has it, with the same parameters and gate order."""
    cell = task.cell
    if _STEPS.get(type(cell)) is not type(cell).step:  # a class that inherits, or one whose step was replaced
        return []
    onednn, cudnn = torch.backends.mkldnn, torch.backends.cudnn
    library = "ATen"
    if device.type == "cuda" and cudnn.enabled and cudnn.is_available():
        library = "cuDNN"
    has_onednn = device.type == "cpu" and task.dtype == torch.float32 and onednn.is_available() and onednn.enabled
    if isinstance(cell, LSTM) and has_onednn:
        library = "oneDNN"
    return [Backend("fused torch layer", partial(operator_layer, cell), library)]


def torch_lacks(task: Task, library: str) -> str | None:
    """Why torch's operator of a library cannot compute these layers, or None if it can."""
    if getattr(task.cell, "layer_norm", False):
        return "it lacks layer_norm"
    if library == "oneDNN" and torch.is_autocast_enabled("cpu"):
        # Without support, torch.lstm raises "could not create a primitive descriptor". With gradients, oneDNN has no
        # float16.
        dtype = torch.get_autocast_dtype("cpu")
        if dtype != torch.bfloat16 or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return f"oneDNN lacks {str(dtype).removeprefix('torch.')} on this CPU"
    if task.options.mask:
        return "it lacks dropout.state"
    if task.options.zoneout:
        return "it lacks zoneout"
    return None


def operator_layer(cell: Cell, x_TBI: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
    """One layer of a kind of torch.nn, without state dropout and zoneout; in a call from each reset to the next."""
    if (keep_TB1 := call.given.get("keep")) is not None:
        resets = (keep_TB1 == 0).any(dim=1).flatten().nonzero().flatten().tolist()
        outputs, state = [], call.state
        zeros = call.state[0].new_zeros(len(call.state))
        starts = call.parameters.get(START, zeros).chunk(len(zeros))
        for first, end in itertools.pairwise(sorted({0, *resets, len(x_TBI)})):
            begins_B1 = keep_TB1[first] == 0
            state = tuple(torch.where(begins_B1, *pair) for pair in zip(starts, state, strict=True))
            y_TBH, state = operator_layer(cell, x_TBI[first:end], call._replace(state=state, given={}))
            outputs.append(y_TBH)
        return torch.cat(outputs), state
    assert not call.given
    # cuDNN rejects a state that is not contiguous.
    state: Any = [s_BH[None].contiguous() for s_BH in call.state]  # of [1, B, H]
    operators = {"rnn_tanh": torch.rnn_tanh, "rnn_relu": torch.rnn_relu, "gru": torch.gru, "lstm": torch.lstm}
    operator = operators[f"rnn_{cell.nonlinearity}" if isinstance(cell, RNN) else cell.kind]
    parameters = [parameter for name, parameter in call.parameters.items() if name != START]
    has_biases, num_layers, dropout, bidirectional, batch_first = True, 1, 0.0, False, False
    # `train` makes cuDNN and oneDNN save what the backward pass needs. Gradients need that in eval mode, too.
    options = has_biases, num_layers, dropout, torch.is_grad_enabled(), bidirectional, batch_first
    with _on_gpu(x_TBI.device) if x_TBI.device.type != "cpu" else nullcontext():
        hidden = state if isinstance(cell, LSTM) else state[0]
        y_TBH, *last = operator(x_TBI, hidden, parameters, *options)
    # Under autocast some operators return bfloat16, and torch rejects mixed dtypes in the next layer.
    dtype = call.state[0].dtype
    return y_TBH.to(dtype), tuple(s_1BH[0].to(dtype) for s_1BH in last)


@contextmanager
def _on_gpu(device: torch.device) -> Iterator[None]:
    """The context of cuDNN's layers."""
    # Autocast would run them in float16, whatever dtype it is asked for (torch's AutocastRNN.cpp), and float16
    # overflows. Torch warns that cuDNN copies the weights into one buffer, which takes microseconds.
    with without_autocast(device), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        yield
