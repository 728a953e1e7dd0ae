"""The model around the cells, and its loss.

network.py    CharLM: embedding → recurrent layers → logits → the loss of a window
objective.py  the objective of a window and its gradients, by kernels of the CPU
members.py    Members: an ensemble of them, with the same interface
build.py      from a config to modules; their parameters
"""

from charlm.model.build import (
    build_model,
    count_parameters,
    count_weights,
    load_weights,
    named_weights,
    parameters_by_part,
    uninitialized_model,
)
from charlm.model.members import Members, Network
from charlm.model.network import NEVER, CharLM, WindowLoss, overflow
