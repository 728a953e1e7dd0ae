"""What a kind of cell defines in its gates.py: the equations of its gates.h for tensors.

The same functions compute with PyTorch's tensors and, compiled by Triton, with those of a kernel. They contain
arithmetic, comparisons, tuples, the functions below, and calls of one another, nothing else: no loops, no conditions on
values, no default arguments. Annotations are in quotes, because Triton would look up their names. All tensors have the
same shape; every tuple has a fixed length.

    forward(maps, before) → after, saved
        maps: the argument of each gate, W x + R h + biases, in the order of the weights' rows; then R h + b of the
        gates that stay apart. before, after: the state tensors before and after a step; the first is h. saved: what
        the backward pass needs besides the states.
    backward(before, after, saved, d_after) → d_maps, d_direct
        d_direct: gradients of the direct states, without what comes through R h.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]


class Parts(NamedTuple):
    """The equations of a cell with layer normalization, before and after the normalization of its second state."""

    update: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]
    """(maps, before) → all states but h, saved"""
    output: Callable[[Tensors, Tensor], Tensor]
    """(saved, second) → h; second: the second state, normalized"""
    output_back: Callable[[Tensors, Tensor, Tensor], tuple[Tensor, Tensor]]
    """(saved, second, d_h) → gradients of the last gate's argument and of `second`"""
    update_back: Callable[[Tensors, Tensors, Tensor], tuple[Tensors, Tensors]]
    """(before, saved, d_second) → gradients of the other gates' arguments and of the direct states"""


class Equations(NamedTuple):
    """One variant of a kind of cell; see the head of this file."""

    forward: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]
    backward: Callable[[Tensors, Tensors, Tensors, Tensors], tuple[Tensors, Tensors]]
    gates: int
    saved: int
    direct: tuple[bool, ...]
    """For each state: whether the cell reads its value before the step other than through R h."""
    apart: int = 0
    """How many of the last gates need W x + b and R h + b apart."""
    parts: Parts | None = None
    """Layer normalization of the gates and of the second state; in place of `forward` and `backward`."""


sigmoid: Callable[[Tensor], Tensor] = torch.sigmoid
tanh: Callable[[Tensor], Tensor] = torch.tanh
exp: Callable[[Tensor], Tensor] = torch.exp
maximum: Callable[[Tensor, Tensor], Tensor] = torch.maximum
where: Callable[[Any, Any, Any], Tensor] = torch.where
log_sigmoid: Callable[[Tensor], Tensor] = torch.nn.functional.logsigmoid
