"""8. How long does an LSTM remember?

On its way through time, the LSTM's cell state c is multiplied by the forget gate σ(f) at each step. Suppose that f is
the bias alone, the same at each step. Then it is clear how long something stays in memory.
"""

import numpy as np
from checking import examine


def share_left(bias, steps):
    """The share of c that is left after so many steps."""
    return ...


def half_life(bias):
    """After how many steps half of it is left; a float."""
    return ...


def bias_for(steps):
    """The bias with which half is left after so many steps."""
    gate = ...
    return ...  # the inverse of the sigmoid, log(gate / (1 − gate))


if __name__ == "__main__":
    examine(globals())
