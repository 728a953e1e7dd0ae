"""Recurrent cells: one folder per kind, with its module and the equations that define it.

To add a kind: a folder here with a subclass of `RecurrentBase`, a line in `CELLS` below, a class for its options in the
union `AnyCell` (charlm/config/cells.py), and a YAML file in configs/. Everything else reads `CELLS`.

    base.py                 RecurrentBase: options, states, dropout, initialization, choice of the backend
    torch_base.py           TorchRecurrentBase: a kind with an operator in torch
    backend.py              Backend: one way to compute a layer; the choice of the fastest that can
    <kind>/__init__.py      the module
    <kind>/reference.py     the equations of one layer in plain PyTorch
    <kind>/gates.h          the equations and their derivatives for the CPU driver (native/)
    <kind>/gates.py         the same for the GPU driver (gpu/), in PyTorch and Triton

Shape suffixes: T steps, B streams, I inputs, H hidden units, G stacked gates, D recurrence depth, L layers.
"""

import torch

from charlm.cells.backend import Backend, Seen, Selection
from charlm.cells.base import RecurrentBase, RecurrentState, as_tuple, dropout_mask
from charlm.cells.gru import GRU
from charlm.cells.lstm import LSTM
from charlm.cells.rhn import RHN
from charlm.cells.rnn import RNN
from charlm.cells.slstm import SLSTM
from charlm.gpu.products import linear
from charlm.native.generate import Generator
from charlm.native.lookup import Lookup
from charlm.native.loss import cross_entropy

CELLS: dict[str, type[RecurrentBase]] = {
    "rnn": RNN,
    "lstm": LSTM,
    "gru": GRU,
    "rhn": RHN,
    "slstm": SLSTM,
}


def select_backends(device: torch.device | str) -> dict[str, Selection]:
    """The backend of every kind with default options in training on `device`, and why not a faster one.

    Call it under the same autocast as training. It compiles kernels at first use, builds models of one unit only, and
    leaves torch's random generator unchanged.
    """
    with torch.random.fork_rng(devices=[]):
        return {kind: cell(1, 1).to(device).select_backend(device) for kind, cell in CELLS.items()}


__all__ = [
    "CELLS",
    "GRU",
    "LSTM",
    "RHN",
    "RNN",
    "SLSTM",
    "Backend",
    "Generator",
    "Lookup",
    "RecurrentBase",
    "RecurrentState",
    "Seen",
    "Selection",
    "as_tuple",
    "cross_entropy",
    "dropout_mask",
    "linear",
    "select_backends",
]
