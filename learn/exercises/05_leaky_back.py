"""5. Backward by hand: a leaky network.

    new = tanh(W x + R h)
    h'  = h + a ⊙ (new − h),    a = σ(leak)

Each unit learns how fast it forgets: with a near 0 it keeps its state. (docs/cells/own.md trains this cell in charlm.)
`step` is given; find the gradients. dv stands for the gradient of the loss with respect to v. Shapes: [B, H], R [H, H],
leak [H]. Some values reach the loss on two paths: their gradients add up.
"""

import numpy as np
from checking import examine


def step(leak, R, Wx, h):
    a = 1 / (1 + np.exp(-leak))
    new = np.tanh(Wx + h @ R.T)
    return h + a * (new - h), a, new


def back(leak, R, Wx, h, dh_new):
    """The gradients of leak, R and h, from that of the new state."""
    _, a, new = step(leak, R, Wx, h)
    da = ...  # [H]: all streams share a
    dleak = ...  # through the sigmoid: σ' = σ (1 − σ)
    dnew = ...
    dinside = ...  # of W x + R h, through tanh
    dR = ...
    dh = ...
    return dleak, dR, dh


if __name__ == "__main__":
    examine(globals())
