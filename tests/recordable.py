"""What a CUDA graph can record, checked on the CPU."""

import sys
from collections.abc import Hashable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

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

    def __init__(self, check: TorchDispatchMode | None = None) -> None:
        self.check = check or Recordable()
        self.runs = 0
        self.enabled = True

    def run(self, call: Hashable, launches: Launches, device: torch.device) -> None:
        hash(call)
        self.runs += 1
        with self.check:
            launches()


class Operators(TorchDispatchMode):
    """In place of CUDA: records the operators of launches, and replays them on the tensors on which they ran.

    Random numbers are drawn anew. A number that a launch reads must be the same in every replay. Recording changes
    nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recorded = self.replayed = 0

    def __call__(self, launches: Launches, device: torch.device) -> Launches:
        self._calls: list[tuple[Any, ...]] = []
        self._before: dict[int, tuple[Any, Any]] = {}  # storages that the launches did not make, and copies
        self._made: set[int] = set()
        random = torch.get_rng_state()
        with self:
            launches()
        for storage, copy in self._before.values():
            storage.copy_(copy)
        torch.set_rng_state(random)
        self.recorded += 1
        return partial(self._replay, self._calls, [*self._before.values()])

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        arguments = tree_map_only(Tensor, Tensor.detach, (args, kwargs or {}))
        for tensor in _tensors(arguments):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._made:
                self._before.setdefault(storage._cdata, (storage, storage.clone()))
        results = func(*args, **kwargs or {})
        self._made |= {tensor.untyped_storage()._cdata for tensor in _tensors(results)} - self._before.keys()
        self._calls.append((func, arguments, tree_map_only(Tensor, Tensor.detach, results)))
        return results

    def _replay(self, calls: list[tuple[Any, ...]], _storages: list[Any]) -> None:
        self.replayed += 1
        for func, (args, kwargs), results in calls:
            for place, result in zip(tree_leaves(results), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(place, bool | int | float):
                    assert place == result, f"{func} read {result}; when it was recorded, it read {place}"
                elif isinstance(place, Tensor) and place.data_ptr() != result.data_ptr():
                    place.copy_(result)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def takes_rates_on(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets torch's optimizers keep their numbers in tensors on a device for which torch does not test that."""
    for name in ("adam", "rmsprop"):
        module = sys.modules[f"torch.optim.{name}"]
        monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda **options: [device.type])
