"""Recurrent layers in PyTorch: a stack of a cell's layers, and the ways to compute one.

    stack.py            RecurrentLayers: parameters, states, dropout, initialization, choice of the backend
    backend.py          Backend: one way to compute a layer; the choice of the fastest that can
    reference.py        the reference loop, which defines the right results
    torch_operator.py   torch's own operators

Shape suffixes: T steps, B streams, I inputs, H hidden units, G stacked gates, D recurrence depth, L layers.
"""

import torch

from charlm.cells import CELLS
from charlm.layers.backend import Activations, Backend, Selection
from charlm.layers.driven import Lookup
from charlm.layers.stack import NO_DROPOUT, RecurrentLayers, RecurrentState
from charlm.native.generate import Generator
from charlm.native.linear import linear
from charlm.native.loss import cross_entropy
from charlm.native.random import dropout_mask


def select_backend(kind: str, device: torch.device | str) -> Selection:
    """The backend of a kind with default options in training on `device`, and why not a faster one.

    Call it under the same autocast as training. It compiles kernels at first use, builds a model of one unit only, and
    leaves torch's random generator unchanged.
    """
    with torch.random.fork_rng(devices=[]):
        return RecurrentLayers(CELLS[kind](hidden=1), 1).to(device).select_backend(device)


__all__ = [
    "NO_DROPOUT",
    "Activations",
    "Backend",
    "Generator",
    "Lookup",
    "RecurrentLayers",
    "RecurrentState",
    "Selection",
    "cross_entropy",
    "dropout_mask",
    "linear",
    "select_backend",
]
