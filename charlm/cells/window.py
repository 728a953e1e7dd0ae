"""The memory of a pass over a window of T steps: what a cell's generated loops read and write.

Fields are named as in `Arguments` in charlm/native/recurrence.h, which has their shapes. A list holds one tensor for
each item of `Passes`, in its order. Shapes: T steps, B streams, H hidden units, I inputs, S states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from charlm.cells.passes import Passes
from charlm.cells.program import Size, units

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(eq=False, kw_only=True)
class LoopInputs:
    """What a loop reads."""

    passes: Passes
    T: int
    B: int
    H: int
    I: int  # noqa: E741
    bf16: bool
    """Whether products are bfloat16; sums and states are not."""
    saved_steps: int
    """T, or 1 without a backward pass: every step then overwrites what the last one saved."""
    weights: list[Tensor]
    """The matrix of each product in the loop."""
    windows: list[Tensor]
    """[T, B, n] each; with ids tables [V, n], of which each step reads a row."""
    vectors: list[Tensor]
    ids: Tensor | None = None
    given: list[Tensor]
    """[T or 1, B or 1, n] each, see charlm/cells/state_options.py."""


@dataclass(eq=False, kw_only=True)
class Window(LoopInputs):
    """What the forward pass reads and writes; the backward pass reads it again."""

    states: Tensor
    """[S, 1 + T, B, H]: before the first step, set by the caller, and after each step."""
    saved: list[Tensor]
    operands: list[Tensor]
    moments: Tensor | None = None

    def units(self, size: Size) -> int:
        """The length of a vector of this size."""
        return units(size, self.H, self.I)

    def row(self, t: int) -> int:
        """The row of the saved tensors that step t writes."""
        return t if self.saved_steps > 1 else 0

    def state(self, name: str, t: int) -> Tensor:
        """A state before step t, [B, H]."""
        return self.states[self.passes.states.index(name), t]

    def operand(self, index: int, t: int) -> Tensor:
        """An operand of products that is not a state, [B, size]."""
        return self.operands[self.passes.stored_operands.index(index)][self.row(t)]


@dataclass(eq=False)
class Gradients:
    """What the backward pass reads and writes besides."""

    d_outputs: Tensor
    """[T, B, H], read."""
    d_last: Tensor | None
    """[S, B, H], read: of the states after the last step; None: zeros."""
    d_products: list[Tensor]
    d_windows: list[Tensor]
    d_vectors: list[Tensor | None]
    """Zeros, to which the pass adds; None where it equals the sum of a product's gradient."""
    d_first: Tensor
    """[S, B, H]: of the states before the first step."""
