"""10. The highway, backward.

    h = tanh(a_h)    g = σ(a_g)    c = σ(a_c)
    s' = h ⊙ g + s ⊙ c

A recurrent highway network may have a carry gate c with weights of its own (charlm: couple_gates: false); the lesson's
has c = 1 − g. All three a are side by side in one product: a = W x + R s + b, [B, 3H]. Find the gradients of a and s.
"""

import numpy as np
from checking import examine


def sigmoid(v):
    return 0.5 + 0.5 * np.tanh(0.5 * v)


def step(R, Wx, s):
    h, g, c = np.split(Wx + s @ R.T, 3, axis=1)
    h, g, c = np.tanh(h), sigmoid(g), sigmoid(c)
    return h * g + s * c, h, g, c


def back(R, Wx, s, ds_new):
    """The gradients of the three a and of s, all [B, H], from that of the new state."""
    _, h, g, c = step(R, Wx, s)
    da_h = ...
    da_g = ...
    da_c = ...
    da = np.concatenate([da_h, da_g, da_c], axis=1)
    ds = ...
    return da_h, da_g, da_c, ds


if __name__ == "__main__":
    examine(globals())
