"""Recurrent cells: one folder a kind, with its module and the equations that define it.

A new kind is a folder with a `RecurrentBase` and a line in `CELLS`; the tests in tests/cells run over `CELLS`.

    base.py                 RecurrentBase: layers, states, dropout, initialisation, choice of what computes
    torch_base.py           TorchRecurrentBase: a RecurrentBase whose layers torch's own operators can run
    lookup.py               inputs that are rows of a table
    <kind>/__init__.py      the module
    <kind>/reference.py     the equations of one layer in plain PyTorch
    <kind>/cpu.cpp, cpu.py  the fused kernel of one layer, and its call
    native/                 what kernels share: compilation, calls, vectors, threads, matrix products, cross-entropy

Shape suffixes: T steps, B streams, I inputs, H hidden units, G stacked gates, D recurrence depth, L layers.
"""

from charlm.cells.base import RecurrentBase, RecurrentState, dropout_mask
from charlm.cells.gru import GRU
from charlm.cells.lstm import LSTM
from charlm.cells.rhn import RHN
from charlm.cells.rnn import RNN
from charlm.native.generate import Generator
from charlm.native.linear import linear
from charlm.native.lookup import Lookup
from charlm.native.loss import cross_entropy

CELLS: dict[str, type[RecurrentBase]] = {"rnn": RNN, "lstm": LSTM, "gru": GRU, "rhn": RHN}

__all__ = [
    "CELLS",
    "GRU",
    "LSTM",
    "RHN",
    "RNN",
    "Generator",
    "Lookup",
    "RecurrentBase",
    "RecurrentState",
    "cross_entropy",
    "dropout_mask",
    "linear",
]
