"""The loop over a window on GPUs: its steps by Triton's kernels, replayed as CUDA graphs or launched one by one."""

from collections.abc import Iterable

import torch

from charlm.cells.passes import Passes
from charlm.cells.window import Gradients, Window
from charlm.errors import LoopError, is_out_of_memory
from charlm.gpu.graphs import Graphs, Launches, identity, is_recording, lacks_graphs, reason_of, stream_of
from charlm.system.device import fp32_precision, without_autocast


class GpuDriver:
    """Computes the loops of all cells in float32. graphs: None to launch kernels one by one.

    LoopError where a kernel fails; `faults` then says why, and no layer with this step takes the driver again.
    """

    padding = 1

    def __init__(self, graphs: Graphs | None) -> None:
        self.graphs = graphs
        self.name = "loop of single kernels" if graphs is None else "loop in CUDA graphs"
        self.faults: dict[Passes, str] = {}

    def lacks(self, device: torch.device, both_passes: Iterable[Passes | None]) -> str | None:
        """Why the driver cannot compute layers with these passes on this device, or None if it may."""
        faults = [self.faults[passes] for passes in both_passes if passes in self.faults]
        if faults:
            return faults[0]
        return lacks_graphs(device) if self.graphs else None

    def for_a_proof(self) -> "GpuDriver":
        """A driver of the same kind with graphs of its own, which raise where they fail."""
        return GpuDriver(self.graphs and Graphs(self.graphs.recorder, strict=True))

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

        try:
            # Triton launches on this thread's current device, whichever holds the tensors.
            with torch.cuda.device_of(window.states):
                if self.graphs and self.graph_stream(device) is not None:
                    self.graphs.run((fp32_precision(), identity(fields)), in_full_precision, device)
                else:
                    in_full_precision()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            fault = self.faults[window.passes] = reason_of(error)
            advice = "the next call takes a slower way; CHARLM_KERNELS=none takes the slow, safe way from the start"
            raise LoopError(f"{device}: the {self.name} failed: {fault}; {advice}") from error

    def graph_stream(self, device: torch.device) -> int | None:
        """The stream in which windows are replayed as graphs; None where they are not."""
        if self.graphs is None or not self.graphs.enabled or is_recording(device):
            return None
        return stream_of(device)


DRIVERS = GpuDriver(Graphs()), GpuDriver(None)
"""The fastest first. All layers share them."""
