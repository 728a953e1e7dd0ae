"""Backends: the ways to compute one recurrent layer. selection.py lists them, fastest first, and chooses one."""

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
from charlm.cells.state_options import StateOptions
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
    hidden: int
    inputs: int


class Task(NamedTuple):
    """What a backend is chosen for."""

    cell: Cell
    layers: tuple[LayerForm, ...]
    both_passes: Callable[[StateOptions], tuple[Passes | None, Passes]]
    """Of all layers, see `charlm.cells.derivative.both_passes`."""
    dtype: torch.dtype
    """Of parameters and states."""
    training: bool
    options: StateOptions
    buffers: BufferCache
    """For loops on GPUs."""


class LayerCall(NamedTuple):
    """What one call of a layer takes besides its input."""

    passes: Passes
    """Of the cell's step, with the options of the call."""
    parameters: dict[str, Tensor]
    """By name, in the order of the program's; weight dropout is already applied."""
    inputs: int
    """I, the size of the input."""
    state: LayerState
    given: dict[str, Tensor]
    """What the step reads besides the input, by name, see charlm/cells/state_options.py."""
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
    """What runs the loop: `layer` then also takes a Lookup as input."""
    options: StateOptions | None = None
    """What its loop reads of a call, acting or not; None: what acts."""
