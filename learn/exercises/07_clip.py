"""7. Exploding gradients: clip them.

If the Jacobians stretch vectors, the gradient explodes: one step of training then throws the weights far away. The cure
is plain (Pascanu et al. 2013). Take the gradients of all weights as one long vector. If it is longer than a limit, make
it as long as the limit. Its direction stays.
"""

import numpy as np
from checking import examine


def norm(gradients):
    """The length of the vector of all gradients; gradients: a dict of arrays."""
    return ...


def clip(gradients, limit):
    """The gradients, scaled down where their norm is above the limit."""
    scale = ...
    return {name: ... for name, gradient in gradients.items()}


if __name__ == "__main__":
    examine(globals())
