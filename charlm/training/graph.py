"""On a GPU a whole update can be one CUDA graph: `CHARLM_GRAPHS=update`."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from charlm.gpu.graphs import Graphs, Launches, Recorder, identity
from charlm.layers import RecurrentState
from charlm.system.device import fp32_precision
from charlm.training.state import TrainState


class UpdateGraph:
    """Runs updates on tensors that keep their addresses: the second one on the same tensors is recorded, then replayed.

    The host copies the window and the numbers in and launches once. Without CUDA graphs every update is launched.
    zero_state: the hidden state where an epoch starts.
    """

    def __init__(self, zero_state: RecurrentState) -> None:
        self._recurrent = zero_state
        self._device = zero_state[0].device
        self._inputs: list[Tensor] = []
        self._recorder = Recorder()
        self.graphs = Graphs(self._record, capacity=1)
        self.graphs.enabled = self._device.type == "cuda"
        self._last_end: torch.cuda.Event | None = None

    def run(
        self, update: Callable[..., None], state: TrainState, inputs: Sequence[Tensor | float], others: Sequence[object]
    ) -> None:
        """Run update(*inputs), with numbers as 0-d tensors. What it puts into `state` is copied to its old addresses.

        inputs: the window's tensors come first. others: what the update reads and writes besides inputs and state.
        """
        if not self._inputs:
            self._inputs = [torch.as_tensor(value, device=self._device).clone() for value in inputs]
        for place, value in zip(self._inputs, inputs, strict=True):
            place.copy_(value) if isinstance(value, Tensor) else place.fill_(value)
        if state.recurrent is None:
            state.recurrent = tuple(tensor.zero_() for tensor in self._recurrent)
        self._recurrent = state.recurrent
        tensors = *self._inputs, state.objective_sum, state.grad_norm, *state.recurrent, *others
        call = fp32_precision(), identity({"tensors": tensors})  # type: ignore[dict-item]
        self.graphs.run(call, partial(self._launch, update, state), self._device)
        if self._device.type == "cuda":
            self._stay_near()

    def _stay_near(self) -> None:
        """Wait, without work for the processor, for the end of the update before this one.

        An update is so few launches that hundreds would fit into CUDA's queue, and a run would end that much too late.
        """
        before, self._last_end = self._last_end, torch.cuda.Event(blocking=True)
        self._last_end.record(torch.cuda.current_stream(self._device))
        if before is not None:
            before.synchronize()

    def _launch(self, update: Callable[..., None], state: TrainState) -> None:
        grad_norm, recurrent = state.grad_norm, state.recurrent
        assert recurrent is not None
        try:
            # A thread of autograd would wait for the lock of all graphs, which this one holds.
            with torch.autograd.set_multithreading_enabled(False):
                update(*self._inputs)
            assert state.recurrent is not None
            results = state.grad_norm, *state.recurrent
            for place, result in zip((grad_norm, *recurrent), results, strict=True):
                place.copy_(result)
        finally:
            state.grad_norm, state.recurrent = grad_norm, recurrent

    def _record(self, launches: Launches, device: torch.device) -> Launches:
        """The graph gets memory of its own; that of the launched updates goes back to the device."""
        torch.cuda.empty_cache()
        return self._recorder(launches, device)
