"""The loop over a window on GPUs: its steps by Triton's kernels, replayed as CUDA graphs."""

import torch

from charlm.cells.window import Gradients, Window
from charlm.gpu.graphs import Graphs, Launches, identity, may_record, stream_of
from charlm.system.device import fp32_precision, without_autocast


class GpuDriver:
    """Computes the loops of all cells in float32."""

    padding = 1

    def __init__(self) -> None:
        self.graphs = Graphs()

    def forward(self, window: Window) -> None:
        from charlm.gpu.kernels import TritonSteps  # not above: Triton can be missing

        self._run(lambda: TritonSteps(window).forward(), window, vars(window))

    def backward(self, window: Window, gradients: Gradients) -> None:
        from charlm.gpu.kernels import TritonSteps

        self._run(lambda: TritonSteps(window, gradients).backward(gradients), window, vars(window) | vars(gradients))

    def _run(self, launches: Launches, window: Window, fields: dict[str, object]) -> None:
        device = window.states.device

        def in_full_precision() -> None:
            with without_autocast(device):
                launches()

        # Triton launches on this thread's current device, whichever holds the tensors.
        with torch.cuda.device_of(window.states):
            if self.takes_graphs(device):
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
