"""The check of 10_highway_back.py."""

import numpy as np
from checking import compare, numeric


def check(step, back):
    rng = np.random.default_rng(1)
    R, Wx, s, ds_new = (rng.normal(size=shape) for shape in [(6, 2), (3, 6), (3, 2), (3, 2)])
    _, h, g, c = step(R, Wx, s)

    def loss():
        return (step(R, Wx, s)[0] * ds_new).sum()

    *da, ds = back(R, Wx, s, ds_new)
    right, slopes = np.split(numeric(loss, Wx), 3, axis=1), (1 - h**2, g * (1 - g), c * (1 - c))
    hints = (
        "h comes into s' by the share g; then the slope of tanh, 1 − h².",
        "s' changes with g by h; then the slope of the sigmoid, g (1 − g).",
        "s' changes with c by s; then the slope of the sigmoid, c (1 − c).",
    )
    for name, found, expected, slope, hint in zip(("h", "g", "c"), da, right, slopes, hints, strict=True):
        compare(
            f"da_{name}", found, expected, hint,
            (expected / slope, f"This is the gradient of {name}, not yet that of a_{name}: the slope is missing."),
            (ds_new * slope, f"What {name} is multiplied with in s' is missing."),
            (ds_new * (h - s) * slope, "That is right for coupled gates. Here g and c are independent."),
            tolerance=1e-5,
        )  # fmt: skip
    through = np.concatenate(right, axis=1) @ R
    compare(
        "ds", ds, numeric(loss, s),
        "s reaches s' on two paths: straight through the carry gate, and through R s into all three a.",
        (through, "This is the path through R. The highway itself is missing: ds' c."),
        (ds_new * c, "This is the highway. The path through R s is missing."),
        (ds_new + through, "The carry gate lets only the share c pass."),
        (ds_new * (1 - g) + through, "1 − g carries if the gates are coupled. Here the carry gate is c."),
        tolerance=1e-5,
    )  # fmt: skip
    return "That is all of backpropagation. charlm derives it from the forward step of any cell: see docs/cells/own.md."
