"""Recurrent cells: one file per kind with its options and equations, and what charlm derives from them.

    cell.py             Cell, and the program of its step
    step.py             what a step calls: parameters and functions
    <kind>.py           a kind: options, and one step in the paper's order
    file.py             a cell in a Python file of the user
    symbols.py          the symbols on which a step runs, and torch's functions of them
    operations.py       the operations of a program: values, derivatives, notation in each target
    program.py          Program: a step as data
    check.py            checks a program
    stored.py           a cell as a checkpoint holds it
    state_options.py    state dropout, zoneout, resets and learned initial states, as rewrites of a program
    split.py            splits a program: before the loop over time, and the loop
    passes.py           the forward and backward pass over a step of the loop, as data
    derivative.py       derives the passes, by reverse mode
    on_tensors.py       a program on PyTorch's tensors
    window.py           what the generated loops read and write: the tensors of a window, by name
    plan.py             which stage of a pass loads, computes and stores what
    cpp.py              the passes in C++
    cpp_loop.py         a loop over units in C++
    triton.py           the passes as Triton kernels
    notation.py         how equations are written
    equations.py        a program's equations for people, and their derivative

Nothing but on_tensors.py imports torch. To add a kind: a file here, its class in `_KINDS`, and a YAML in configs/.

Shape suffixes: T steps, B streams, I inputs, H hidden units, G stacked gates, D recurrence depth, L layers.
"""

from charlm.cells.cell import Cell
from charlm.cells.gru import GRU
from charlm.cells.lstm import LSTM
from charlm.cells.mingru import MinGRU
from charlm.cells.minlstm import MinLSTM
from charlm.cells.mogrifier import Mogrifier
from charlm.cells.rhn import RHN
from charlm.cells.rnn import RNN
from charlm.cells.slstm import SLSTM
from charlm.cells.sru import SRU
from charlm.cells.step import (
    Parameters,
    clamp,
    exp,
    log,
    log_sigmoid,
    maximum,
    minimum,
    normalize,
    relu,
    rms_normalize,
    sigmoid,
    softplus,
    sqrt,
    stop_gradient,
    tanh,
    where,
)

_KINDS = (RNN, LSTM, GRU, RHN, SLSTM, MinGRU, MinLSTM, SRU, Mogrifier)
CELLS: dict[str, type[Cell]] = {cell.model_fields["kind"].default: cell for cell in _KINDS}
"""Every kind by its name."""
