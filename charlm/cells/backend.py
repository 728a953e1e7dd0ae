"""Backends: the ways to compute one recurrent layer, and the choice of the fastest that can.

A kind of cell lists its backends, fastest first, in `RecurrentBase.backends`. The reference loop comes last and can
compute every layer. A new backend is one more entry in that list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

LayerState = tuple[Tensor, ...]
"""The state of one layer: a tensor [B, H] for each of `RecurrentBase.state_names`."""


class LayerCall(NamedTuple):
    """What one call of a layer takes besides its input."""

    parameters: list[Tensor]
    """In the order of `RecurrentBase.parameter_shapes`; weight dropout is already applied to `weight_hh`."""
    state: LayerState
    mask_BH: Tensor | None = None
    """State dropout: multiplies the state where it enters the recurrent products."""
    kept_TBS: Tensor | None = None
    """Zoneout: the share of its previous value that each unit keeps, see `zone_out`.

    S = H for each of `state_names`, side by side. [1, 1, S] applies to all steps and streams.
    """


LayerFunction = Callable[[Any, LayerCall], tuple[Tensor, LayerState]]
"""(x_TBI, call) → (y_TBH, last state of the layer)."""


def always_ready(device: torch.device, training: bool) -> None:
    """The `prepare` of a backend that can compute every layer."""


@dataclass(frozen=True)
class Backend:
    """One way to compute a layer."""

    name: str
    layer: LayerFunction
    prepare: Callable[[torch.device, bool], str | None] = always_ready
    """(device, training) → why this backend cannot compute the layer, or None if it can. May compile a kernel."""
    library: Callable[[], str] | None = None
    """Names the library that does the work, if that depends on the device. Called only to describe the backend."""
    takes_lookup: bool = False
    """Whether `layer` also accepts a Lookup as input."""
    generates: bool = False
    """Whether `Generator` can compute the layer too."""


class Selection(NamedTuple):
    """The backend that computes a layer, and why each faster one cannot."""

    kind: str
    backend: Backend
    passed_over: dict[str, str]
    """Name of each faster backend → why it cannot compute the layer."""

    @property
    def description(self) -> str:
        """One line for people, e.g. "rhn: reference loop; no fused CPU kernel: no C++ compiler"."""
        library = f" ({self.backend.library()})" if self.backend.library else ""
        reasons = [f"; no {name}: {reason}" for name, reason in self.passed_over.items()]
        return f"{self.kind}: {self.backend.name}{library}{''.join(reasons)}"


def select(kind: str, backends: list[Backend], device: torch.device, training: bool) -> Selection:
    """The first of `backends` that can compute the layer on `device`. Compiles kernels at first use."""
    passed_over: dict[str, str] = {}
    for backend in backends:
        reason = backend.prepare(device, training)
        if reason is None:
            return Selection(kind, backend, passed_over)
        passed_over[backend.name] = reason
    raise AssertionError(f"{kind}: the last backend must be able to compute every layer")
