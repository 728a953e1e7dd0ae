"""The driver for GPUs: a window's steps by Triton's kernels or PyTorch's operators, replayed as CUDA graphs."""

import functools
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from charlm.gpu.buffers import BufferCache
from charlm.gpu.graphs import Graphs, identity, inside_graph, may_record, stream_of
from charlm.gpu.steps import Steps
from charlm.native.autograd import without_autocast
from charlm.native.linear import linear_by, torch_matmul
from charlm.native.recurrence import BuffersOf, Driver, Window
from charlm.system.device import fp32_precision


class TensorRecurrence(Driver):
    """The driver of all cells, on any device, in the dtype of the state."""

    linear = staticmethod(functools.partial(linear_by, torch_matmul))
    matmul = staticmethod(torch_matmul)

    def __init__(self) -> None:
        self.graphs = Graphs()

    def run(self, window: Window) -> None:
        device = window.states.device

        def launches() -> None:
            with without_autocast(device):
                steps = self.steps(window)
                if window.d_last is None:
                    for t in range(window.T):
                        steps.forward(t)
                else:
                    for t in reversed(range(window.T)):
                        steps.backward(t)
                    steps.finish()

        # Triton launches on this thread's current device, whichever holds the tensors.
        with torch.cuda.device_of(window.states):
            if self.takes_graphs(device):
                self.graphs.run((fp32_precision(), identity(vars(window))), launches, device)
            else:
                launches()

    def takes_graphs(self, device: torch.device) -> bool:
        """Whether windows become graphs on this device; not where the caller has a graph of its own."""
        if not may_record(device) or inside_graph():
            return False
        with torch.cuda.device(device):
            return not torch.cuda.is_current_stream_capturing()

    def steps(self, window: Window) -> Steps:
        """What computes the steps of a window: Triton's kernels on a GPU, if they can."""
        on_gpu = window.states.device.type == "cuda" and window.states.dtype == torch.float32
        kernels = triton_steps() if on_gpu else None
        return kernels(window) if kernels else Steps(window)

    def library(self) -> str:
        """What computes the steps on a GPU, for people."""
        return "Triton's kernels" if triton_steps() else "PyTorch's operators; no Triton"

    def buffers_of(self, numbers: tuple[Any, ...], tensors: Sequence[Tensor | None], cache: object) -> BuffersOf:
        """Where windows become graphs, buffers with the addresses of an earlier call."""
        device = next(tensor.device for tensor in tensors if tensor is not None)
        if not (isinstance(cache, BufferCache) and self.graphs.enabled and self.takes_graphs(device)):
            return super().buffers_of(numbers, tensors, cache)
        shapes = (None if tensor is None else (tensor.shape, tensor.dtype, tensor.device) for tensor in tensors)
        passes, input_size, *_ = numbers
        # Buffers of another stream may be in use.
        return cache.buffers_of((self, numbers, stream_of(device), *shapes), layer_kind=(passes, input_size))


@functools.cache
def triton_steps() -> "type[Steps] | None":
    """`Steps` by Triton's kernels; None without Triton, which comes with PyTorch where it is built for CUDA."""
    if importlib.util.find_spec("triton") is None:
        return None
    from charlm.gpu.kernels import TritonSteps

    return TritonSteps
