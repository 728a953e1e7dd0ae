"""The check of 04_numeric_gradient.py."""

import numpy as np
from checking import close, compare, expect


def check(numeric_gradient):
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
        (
            (right + 3 * x * epsilon) / 2,
            "It is half, because below is the loss at x: x[place] is x + ε by then. Start from before.",
        ),
        (epsilon**2 * right, "`/ 2 * epsilon` divides by 2 and then multiplies by ε. Put 2 ε in brackets."),
        (2 * epsilon * right, "This is the change of the loss. Divide it by the change of x."),
        tolerance=1e-7,
    )  # fmt: skip
    return "charlm's tests hold every cell's gradients in the same way."
