"""The loop over a window on GPUs: its steps by Triton's kernels or PyTorch's operators, replayed as CUDA graphs."""

import functools
import importlib.util

import torch

from charlm.cells.window import Gradients, Window
from charlm.gpu.graphs import Graphs, Launches, identity, may_record, stream_of
from charlm.gpu.product import matmul
from charlm.gpu.steps import Steps
from charlm.system.device import fp32_precision, without_autocast


class GpuDriver:
    """Computes the loops of all cells, on any device, in the dtype of the state; see `layers.recurrence.Driver`."""

    padding = 1
    matmul = staticmethod(matmul)
    table_gradient = None

    def __init__(self) -> None:
        self.graphs = Graphs()

    def forward(self, window: Window) -> None:
        def launches() -> None:
            steps = self.steps(window)
            for t in range(window.T):
                steps.forward(t)

        self._run(launches, window)

    def backward(self, window: Window, gradients: Gradients) -> None:
        def launches() -> None:
            steps = self.steps(window, gradients)
            for t in reversed(range(window.T)):
                steps.backward(t)
            steps.finish()

        self._run(launches, window, gradients)

    def _run(self, launches: Launches, window: Window, gradients: Gradients | None = None) -> None:
        device = window.states.device

        def in_full_precision() -> None:
            with without_autocast(device):
                launches()

        # Triton launches on this thread's current device, whichever holds the tensors.
        with torch.cuda.device_of(window.states):
            if self.takes_graphs(device):
                fields = vars(window) | ({} if gradients is None else vars(gradients))
                self.graphs.run((fp32_precision(), identity(fields)), in_full_precision, device)
            else:
                in_full_precision()

    def takes_graphs(self, device: torch.device) -> bool:
        """Whether windows become graphs on this device."""
        if not may_record(device):
            return False
        with torch.cuda.device(device):
            return not torch.cuda.is_current_stream_capturing()

    def graph_stream(self, device: torch.device) -> int | None:
        """The stream in which windows are replayed as graphs; None where they are not."""
        return stream_of(device) if self.graphs.enabled and self.takes_graphs(device) else None

    def steps(self, window: Window, gradients: Gradients | None = None) -> Steps:
        """What computes the steps of a pass: Triton's kernels on a GPU, if they can."""
        on_gpu = window.states.device.type == "cuda" and window.states.dtype == torch.float32
        kernels = triton_steps() if on_gpu else None
        return (kernels or Steps)(window, gradients)

    def library(self) -> str:
        """What computes the steps on a GPU, for people."""
        return "Triton's kernels" if triton_steps() else "PyTorch's operators; no Triton"


@functools.cache
def triton_steps() -> "type[Steps] | None":
    """`Steps` by Triton's kernels; None without Triton, which comes with PyTorch where it is built for CUDA."""
    if importlib.util.find_spec("triton") is None:
        return None
    from charlm.gpu.kernels import TritonSteps

    return TritonSteps
