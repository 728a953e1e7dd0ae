"""CUDA graphs: thousands of launches become one.

A graph repeats its recorded launches on the recorded addresses, so only a call with equal addresses, shapes and numbers
can replay it; layers/buffers.py keeps the addresses of a layer's calls.
"""

import contextlib
import functools
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from charlm.system.console import say
from charlm.system.device import allows_graphs

Launches = Callable[[], None]


def lacks_graphs(device: torch.device) -> str | None:
    """Why launches on a device may not become graphs, or None if they may."""
    if device.type != "cuda":
        return "they need a CUDA device"
    return None if allows_graphs() else "switched off by CHARLM_GRAPHS"


def is_recording(device: torch.device) -> bool:
    """Whether the caller records a graph of its own."""
    if device.type != "cuda":
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def stream_of(device: torch.device) -> int:
    """The stream in which this thread launches on the device, which need not be its current device."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


class Recorder:
    """Records launches on a GPU, without running them."""

    def __init__(self) -> None:
        self._pools: dict[tuple[torch.device, int], Any] = {}

    def __call__(self, launches: Launches, device: torch.device) -> Launches:
        """A function that replays the launches in the stream of now; RuntimeError if CUDA cannot record them."""
        graph, stream, place = torch.cuda.CUDAGraph(), _stream(device), (device, stream_of(device))
        # torch.cuda.graph would also empty the allocator's cache, and so change the addresses of the next tensors.
        with torch.cuda.device(device), torch.cuda.stream(stream):
            # One pool for all graphs of this recorder that are replayed in one stream, because no graph's memory is
            # needed after its replay. A pool dies with its last graph, so recorders do not share one.
            if place not in self._pools:
                self._pools[place] = torch.cuda.graph_pool_handle()
            try:
                graph.capture_begin(pool=self._pools[place], capture_error_mode="thread_local")
                launches()
                graph.capture_end()
            except BaseException:
                _abandon(graph)
                raise
        return graph.replay


_ABANDONED: list[torch.cuda.CUDAGraph] = []
"""PyTorch's allocator keeps a pointer to a graph whose capture has failed."""


def _abandon(graph: torch.cuda.CUDAGraph) -> None:
    """End a failed capture, in its stream. Raises nothing, because the first error tells the reason.

    Where CUDA refuses to end it, PyTorch's random generator stays in the capture and would raise at the next draw; a
    successful empty capture takes it out again.
    """
    _ABANDONED.append(graph)
    with contextlib.suppress(RuntimeError):
        graph.capture_end()
    with contextlib.suppress(RuntimeError), warnings.catch_warnings(action="ignore"):
        empty = torch.cuda.CUDAGraph()
        empty.capture_begin(capture_error_mode="thread_local")
        empty.capture_end()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One stream for all graphs, because cuBLAS keeps a workspace for each stream."""
    with torch.cuda.device(device):
        return torch.cuda.Stream()


_ALONE = threading.RLock()
"""Held by the thread that runs launches or records them: all graphs are recorded on the same stream."""


class Graphs:
    """Runs launches, and replays those that it has recorded, in the same stream.

    A call is recorded the second time. The least recently used calls and graphs are forgotten. Where a graph fails,
    this call and all later ones are launched; strict: its error is raised. recorder: makes what records launches.
    """

    def __init__(
        self,
        recorder: Callable[[], Callable[[Launches, torch.device], Launches]] = Recorder,
        capacity: int = 64,
        *,
        strict: bool = False,
    ) -> None:
        self.recorder = recorder
        self._record = recorder()
        self._capacity = capacity
        self._strict = strict
        self._launched: OrderedDict[Hashable, None] = OrderedDict()
        self._recorded: OrderedDict[Hashable, Launches] = OrderedDict()
        self.enabled = True
        self.replays = 0
        """How many calls were replayed."""

    def run(self, call: Hashable, launches: Launches, device: torch.device) -> None:
        """Run launches. call: equal for two calls that launch the same on the same addresses of this device."""
        if not self.enabled:
            launches()
            return
        with _ALONE:
            self._run((call, device, stream_of(device)), launches, device)

    def _run(self, call: Hashable, launches: Launches, device: torch.device) -> None:
        if replay := self._recorded.get(call):
            self._recorded.move_to_end(call)
            self.replays += 1
            try:
                replay()
                return
            except RuntimeError as error:
                self._give_up(error)
        launches()
        if call not in self._launched:
            _put(self._launched, call, None, self._capacity)
            return
        del self._launched[call]
        try:
            _put(self._recorded, call, self._record(launches, device), self._capacity)
        except RuntimeError as error:
            self._give_up(error)

    def _give_up(self, error: RuntimeError) -> None:
        if self._strict:
            raise error
        self.enabled = False
        say("graph", f"not used from now on: {reason_of(error)}; kernels are launched one by one, which is slower")


def reason_of(error: BaseException) -> str:
    """An error of PyTorch, CUDA or Triton in a line."""
    lines = str(error).strip().splitlines() or [""]
    # Triton begins with a place in the kernel and its text.
    line = lines[-1] if lines[0].startswith("at ") else lines[0]
    return f"{type(error).__name__}: {line:.200}".removeprefix("RuntimeError: ").removesuffix(": ")


def _put(items: OrderedDict[Hashable, Any], key: Hashable, item: Any, capacity: int) -> None:
    items[key] = item
    if len(items) > capacity:
        items.popitem(last=False)


def identity(values: Mapping[str, Any]) -> Hashable:
    """Equal for calls with the same numbers and with tensors of the same shape at the same addresses."""

    def of(value: Any) -> Hashable:
        if isinstance(value, list | tuple):
            return tuple(map(of, value))
        if not isinstance(value, Tensor):
            return value
        return value.data_ptr(), value.shape, value.stride(), value.dtype

    return tuple((name, of(value)) for name, value in values.items())
