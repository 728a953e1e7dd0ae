"""4. Trust no gradient: check it by experiment.

A gradient says how the loss changes if a number changes a little. So change it a little and look. Change it both ways,
to x + ε and to x − ε. Then the error is about ε², so small that a mistake in a gradient made by hand shows at once.
"""

import numpy as np
from checking import examine


def numeric_gradient(loss, x, epsilon=1e-4):
    """The gradient of loss() with respect to x, which loss reads: a float64 array that is the same again at the end."""
    dx = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        before = x[place]
        x[place] = ...
        above = loss()
        x[place] = ...
        below = loss()
        x[place] = ...
        dx[place] = ...
    return dx


if __name__ == "__main__":
    examine(globals())
