"""Recurrent layers in PyTorch: a stack of a cell's layers, and its backends.

    stack.py            RecurrentLayers: parameters, states, dropout, initialization
    arguments.py        checks of what the stack is called with
    backend.py          Backend, one way to compute a layer; LayerCall, its arguments; Task, what it is chosen for
    gpu_proof.py        the comparison of a backend with the reference loop, which drivers of GPUs must pass
    selection.py        the backends, and the choice of the fastest one that can compute a stack
    reference.py        the reference loop, which defines the right results
    torch_operator.py   torch's own operators
    recurrence.py       layers by a Driver (native/ on the CPU, gpu/ elsewhere): the loop's memory, and its gradients
    generation.py       Generator: draws characters in the kernels of a model's cell
    buffers.py          the tensors of a driver's calls, new or reused
    operators.py        x wᵀ + b, and the cross-entropy of logits, with their gradients
    dropout.py          masks, and zoneout's shares
    uncompiled.py       a call outside of torch.compile's graphs
    check_backends.py   whether all backends of a cell agree

Shape suffixes: T steps, B streams, I inputs, H hidden units, G stacked gates, D recurrence depth, L layers.
"""

import torch

from charlm.cells import CELLS
from charlm.layers.backend import Activations, Backend, Lookup, RecurrentState
from charlm.layers.dropout import drop_units, dropout_mask, unit_mask
from charlm.layers.generation import Generator
from charlm.layers.operators import cross_entropy, linear
from charlm.layers.selection import Selection
from charlm.layers.stack import NO_DROPOUT, RecurrentLayers


def select_backend(kind: str, device: torch.device | str, resets: bool = False) -> Selection:
    """The backend of two layers of a kind with default options in training on `device`, and why not a faster one.

    See `RecurrentLayers.select_backend`. Leaves torch's random generator unchanged.
    """
    with torch.random.fork_rng(devices=[]):
        # As most layers on a GPU: 16 divides their sizes.
        return RecurrentLayers(CELLS[kind](hidden=16), 32, 2).to(device).select_backend(device, resets=resets)
