"""The model around the cells, and its loss.

network.py   CharLM: embedding → recurrent layers → logits
members.py   Members: several of them that predict together
build.py     from a config to modules; their parameters
loss.py      the loss of one window
"""

from charlm.model.build import (
    build_model,
    count_parameters,
    count_vocabulary_parameters,
    load_weights,
    parameters_by_part,
    uninitialized_model,
)
from charlm.model.loss import WindowLoss, mean_square, window_loss
from charlm.model.members import Members, Network, generator_of
from charlm.model.network import CharLM, map_state, overflow

__all__ = [
    "CharLM",
    "Members",
    "Network",
    "WindowLoss",
    "build_model",
    "count_parameters",
    "count_vocabulary_parameters",
    "generator_of",
    "load_weights",
    "map_state",
    "mean_square",
    "overflow",
    "parameters_by_part",
    "uninitialized_model",
    "window_loss",
]
