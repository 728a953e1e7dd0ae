"""6. How far does a gradient reach?

In an RNN, h_t = tanh(W x_t + R h_{t−1}). How much does h_t change if h_{t−1} changes a little? The Jacobian says it, a
matrix J_t with J[i, j] = ∂h_t[i] / ∂h_{t−1}[j]. By the chain rule, the change over k steps is a product of k such
matrices. If they shrink vectors, the product vanishes: the network cannot learn from what was long ago.
"""

import numpy as np
from checking import examine


def jacobian(h_t, R):
    """J_t, [H, H], from the state after the step, h_t [H]."""
    return ...


def reach(states, R):
    """The norms of ∂h_T/∂h_{T−1}, ∂h_T/∂h_{T−2} and so on; states: h_1 … h_T."""
    product = np.eye(len(R))
    norms = []
    for h_t in reversed(states):  # from the last step to the first
        product = ...
        norms.append(np.linalg.norm(product))
    return norms


if __name__ == "__main__":
    examine(globals())
