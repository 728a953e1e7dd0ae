"""Backends: the ways to compute one recurrent layer. selection.py lists them, fastest first, and chooses one."""

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells import Cell
from charlm.cells.passes import Passes
from charlm.cells.program import Program
from charlm.gpu.recurrence import GpuDriver
from charlm.layers.buffers import BufferCache
from charlm.native.recurrence import CpuDriver


class Lookup(NamedTuple):
    """An input [T, B, I] whose vectors are rows of a table [V, I].

    A layer can multiply the table by its weights and look up rows of the product: V products instead of T · B.
    """

    ids_TB: Tensor
    table_VI: Tensor | None
    """None: the identity matrix, so the input is one-hot and I = V."""

    def dense(self, input_size: int, like: Tensor) -> Tensor:
        """The input as a tensor [T, B, I]; a one-hot input has the dtype and device of `like`."""
        if self.table_VI is not None:
            return F.embedding(self.ids_TB, self.table_VI)
        return like.new_zeros(*self.ids_TB.shape, input_size).scatter_(-1, self.ids_TB.unsqueeze(-1), 1.0)


LayerState = tuple[Tensor, ...]
"""The state of one layer: a tensor [B, H] for each of `Cell.states`."""
RecurrentState = tuple[Tensor, ...]
"""The state of all layers: [L, B, H] for each of `Cell.states` (LSTM: h and c)."""


Activations = defaultdict[tuple[str, bool], list[Tensor]]
"""What the reference loop records of a layer, a tensor [B, H] per step: (name, False): the state after the step, of an
RHN after each depth too; (name, True): what decides it, gates from 0 to 1 (r, z, i, f, o, g1, …) and candidates."""


class LayerForm(NamedTuple):
    """The step of a layer, and its sizes."""

    program: Program
    passes: Passes
    hidden: int
    inputs: int


class Task(NamedTuple):
    """What a backend is chosen for."""

    cell: Cell
    layers: tuple[LayerForm, ...]
    both_passes: tuple[Passes | None, Passes]
    """Of all layers, see `charlm.cells.derivative.both_passes`."""
    dtype: torch.dtype
    """Of parameters and states."""
    training: bool
    resets: bool
    mask: bool
    """Whether state dropout acts."""
    zoneout: bool
    buffers: BufferCache
    """For loops on GPUs."""


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
    library: str = ""
    """What does the work, for people."""
    driver: CpuDriver | GpuDriver | None = None
    """What runs the loop: `layer` then also takes a Lookup as input, and `carry_TB`."""


def after_end(T: int, lengths_B: Tensor) -> Tensor:
    """Whether a step comes after the end of its stream, [T, B, 1]."""
    return (torch.arange(T, device=lengths_B.device)[:, None] >= lengths_B).unsqueeze(-1)


def layer_in_parts(backend: Backend, x: Any, call: LayerCall, lengths_B: Tensor | None) -> tuple[Tensor, LayerState]:
    """`Backend.layer`, where needed by a call from each step at which a stream ends, or is reset, to the next.

    lengths_B: how many steps each stream has; None: all have T.
    """
    carry_TB, cuts = call.carry_TB, {0, len(x)}
    if backend.driver and carry_TB is None and lengths_B is not None and not call.passes.split.loop.internal:
        # As if zoneout kept all of each state after the stream's end, where its last input is repeated: a step that is
        # computed for nothing must not give an infinity, whose product with 0 is no number.
        is_after_TB1 = after_end(len(x), lengths_B)
        last_BI = x[(lengths_B - 1).clamp(min=0), torch.arange(len(lengths_B), device=lengths_B.device)]
        x = torch.where(is_after_TB1, last_BI, x)
        shares_TBS = call.state[0].new_zeros(1) if call.zoneout_TBS is None else call.zoneout_TBS
        S = len(call.state) * call.state[0].shape[1]
        call = call._replace(zoneout_TBS=torch.where(is_after_TB1, 1.0, shares_TBS).expand(-1, -1, S).contiguous())
        lengths_B = None
    if lengths_B is None and (carry_TB is None or backend.driver):
        return backend.layer(x, call)
    if lengths_B is not None:
        cuts.update(lengths_B.tolist())
    if carry_TB is not None:
        cuts.update((carry_TB == 0).any(dim=1).nonzero().flatten().tolist())
    outputs, state = [], call.state
    for start, end in itertools.pairwise(sorted(cuts)):
        before = state
        if carry_TB is not None:
            state = tuple(tensor * carry_TB[start, :, None] for tensor in state)
        part = call._replace(state=state, carry_TB=None)
        if call.zoneout_TBS is not None and len(call.zoneout_TBS) > 1:
            part = part._replace(zoneout_TBS=call.zoneout_TBS[start:end])
        y_TBH, state = backend.layer(x[start:end], part)
        outputs.append(y_TBH)
        if lengths_B is not None:
            goes_on_B1 = (lengths_B >= end)[:, None]
            state = tuple(torch.where(goes_on_B1, *pair) for pair in zip(state, before, strict=True))
    return torch.cat(outputs), state
