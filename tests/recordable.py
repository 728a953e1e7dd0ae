"""What a CUDA graph can record, checked on the CPU."""

from collections.abc import Hashable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from charlm.gpu.graphs import Launches

_FORBIDDEN = {
    torch.Tag.data_dependent_output: "reads a value",
    torch.Tag.dynamic_output_shape: "has a shape that depends on values",
    torch.Tag.nondeterministic_seeded: "draws random numbers",
}


class Recordable(TorchDispatchMode):
    """Raises for operators that wait for the device, or that a replay would not repeat.

    New memory is allowed: a graph's own pool keeps it at its address.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tag, fault in _FORBIDDEN.items():
            assert tag not in func.tags, f"{func} {fault}"
        return func(*args, **kwargs or {})


class CheckedGraphs:
    """In place of `Graphs`: launches everything, as if it were recorded, under a check."""

    def __init__(self) -> None:
        self.runs = 0
        self.enabled = True

    def run(self, call: Hashable, launches: Launches, device: torch.device) -> None:
        hash(call)
        self.runs += 1
        with Recordable():
            launches()
