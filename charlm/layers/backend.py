"""Backends: the ways to compute one recurrent layer.

`RecurrentLayers.backends` lists them, fastest first. The reference loop comes last and can
compute every layer. A new backend is one more entry in that list.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from charlm.cells.passes import Passes

LayerState = tuple[Tensor, ...]
"""The state of one layer: a tensor [B, H] for each of `Cell.states`."""


Activations = defaultdict[tuple[str, bool], list[Tensor]]
"""What the reference loop records of a layer, a tensor [B, H] per step: (name, False): the state after the step, of an
RHN after each depth too; (name, True): what decides it, gates from 0 to 1 (r, z, i, f, o, g1, …) and candidates."""


class LayerCall(NamedTuple):
    """What one call of a layer takes besides its input."""

    passes: Passes
    """The cell's step."""
    parameters: dict[str, Tensor]
    """By name, in the order of the program's; weight dropout is already applied."""
    state: LayerState
    mask_BH: Tensor | None = None
    """State dropout: multiplies the state where it enters the recurrent products."""
    zoneout_TBS: Tensor | None = None
    """Zoneout: the share of its previous value that each unit keeps, see `zone_out`.

    S = H for each of the states, side by side. [1, 1, S] applies to all steps and streams.
    """
    carry_TB: Tensor | None = None
    """0 where a stream's state is set to zero before the step, else 1; None: it always goes on."""
    activations: Activations | None = None
    """Where the reference loop records states and gates; other backends do not."""


@dataclass(frozen=True)
class Backend:
    """One way to compute a layer."""

    name: str
    layer: Callable[[Any, LayerCall], tuple[Tensor, LayerState]]
    """(x_TBI, call) → (y_TBH, last state of the layer)."""
    prepare: Callable[[bool], str | None] = lambda training: None
    """training → why this backend cannot compute the layer, or None if it can. May compile a kernel."""
    library: str = ""
    """Names the library that does the work, if that depends on the device."""
    takes_lookup: bool = False
    """Whether `layer` also accepts a Lookup as input."""
    takes_resets: bool = False
    """Whether `layer` accepts a call with `carry_TB`."""
    generates: bool = False
    """Whether `Generator` can compute the layer too."""

    def compute(self, x: Any, call: LayerCall) -> tuple[Tensor, LayerState]:
        """One layer. If it does not take resets: a call from each step at which a stream is reset to the next."""
        carry_TB = call.carry_TB
        if carry_TB is None or self.takes_resets:
            return self.layer(x, call)
        resets = (carry_TB[1:] == 0).any(dim=1).nonzero().flatten() + 1
        outputs, state = [], call.state
        for start, end in itertools.pairwise([0, *resets.tolist(), len(carry_TB)]):
            state = tuple(tensor * carry_TB[start, :, None] for tensor in state)
            zoneout_TBS = call.zoneout_TBS
            if zoneout_TBS is not None and len(zoneout_TBS) > 1:
                zoneout_TBS = zoneout_TBS[start:end]
            y_TBH, state = self.layer(x[start:end], call._replace(state=state, zoneout_TBS=zoneout_TBS, carry_TB=None))
            outputs.append(y_TBH)
        return torch.cat(outputs), state


class Selection(NamedTuple):
    """The backend that computes a layer, and why each faster one cannot."""

    kind: str
    backend: Backend
    passed_over: dict[str, str]
    """Name of each faster backend → why it cannot compute the layer."""

    @property
    def description(self) -> str:
        """One line for people, e.g. "rhn: reference loop; no fused CPU kernel: no C++ compiler"."""
        return f"{self.kind}: {self.way}"

    @property
    def way(self) -> str:
        """What computes the layer, in words, and why nothing faster does."""
        library = f" ({self.backend.library})" if self.backend.library else ""
        reasons = [f"; no {name}: {reason}" for name, reason in self.passed_over.items()]
        return f"{self.backend.name}{library}{''.join(reasons)}"
