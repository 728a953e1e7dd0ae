"""4. Trust no gradient: check it by experiment.

A gradient says how the loss changes if a number changes a little. So change it a little and look. Change it both ways,
to x + ε and to x − ε. Then the error is about ε², so small that a mistake in a gradient made by hand shows at once.
"""

import numpy as np
from checking import close, compare, examine, expect


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


def check():
    x = np.array([[1.0, 2.0, -1.0], [0.5, 3.0, 0.0]])
    start, right, epsilon = x.copy(), 3 * x**2, 1e-4
    found = numeric_gradient(lambda: (x**3).sum(), x, epsilon)
    expect(
        close(x, start, 1e-12),
        "x is not what it was before. Put each number back before you go on to the next, else they all are changed.",
    )
    compare(
        "the gradient of Σ x³, which is 3 x²", found, right,
        "Change of the loss, divided by the change of x.",
        (2 * right, "It is twice too large: from x − ε to x + ε are 2 ε, not ε."),
        (-right, "The sign is wrong: what is above minus what is below."),
        (right + 3 * x * epsilon, "It is off by about ε: you compare x + ε with x. Compare x + ε with x − ε."),
        (2 * epsilon * right, "This is the change of the loss. Divide it by the change of x."),
        tolerance=1e-7,
    )  # fmt: skip
    return "charlm's tests hold every cell's gradients in the same way."


if __name__ == "__main__":
    examine(check)
