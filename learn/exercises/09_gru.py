"""9. Another cell: the GRU.

    r  = σ(r_x + r_h)                   reset gate
    z  = σ(z_x + z_h)                   update gate
    n  = tanh(n_x + r ⊙ n_h)            candidate
    h' = (1 − z) ⊙ n + z ⊙ h

The parts _x belong to W x_t + b, the parts _h to R h_{t−1} + b'. It is the form of torch.nn.GRU and of charlm: r acts
on all of R h + b'. Two gates do the work of the LSTM's three, and there is no second state.
"""

import numpy as np
from checking import examine


def sigmoid(v):
    return 0.5 + 0.5 * np.tanh(0.5 * v)


def step(Wx, Rh, h):
    """h' [B, H] from Wx = W x_t + b and Rh = R h + b', both [B, 3H] in the order r, z, n, and from the state h."""
    r_x, z_x, n_x = np.split(Wx, 3, axis=1)
    r_h, z_h, n_h = np.split(Rh, 3, axis=1)
    r = ...
    z = ...
    n = ...
    return ...


if __name__ == "__main__":
    examine(globals())
