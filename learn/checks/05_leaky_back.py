"""The check of 05_leaky_back.py."""

import numpy as np
from checking import compare, numeric


def check(step, back):
    rng = np.random.default_rng(1)
    leak, R, Wx, h, dh_new = (rng.normal(size=shape) for shape in [(3,), (3, 3), (2, 3), (2, 3), (2, 3)])
    a, new = step(leak, R, Wx, h)[1:]

    def loss():
        return (step(leak, R, Wx, h)[0] * dh_new).sum()

    dleak, dR, dh = back(leak, R, Wx, h, dh_new)
    right, slope = numeric(loss, leak), a * (1 - a)
    compare(
        "dleak", dleak, right,
        "h' changes with a by new − h. Sum over the streams (axis 0), then multiply by the slope of the sigmoid.",
        (right / slope, "This is the gradient of a. The sigmoid is missing: multiply by a (1 − a)."),
        ((dh_new * new).sum(0) * slope, "a also makes h smaller: h' changes with a by new − h, not by new alone."),
        ((dh_new * (new - h)).mean(0) * slope, "This is the mean over the streams. What they share gets the sum."),
        tolerance=1e-5,
    )  # fmt: skip
    right, inside = numeric(loss, R), dh_new * a * (1 - new**2)
    compare(
        "dR", dR, right,
        "dinside is dnew (1 − new²), with dnew = dh' a. Then dR[i, j] = Σ over streams of dinside[i] h[j].",
        (right.T, "It is transposed: rows belong to the units that R leads to, columns to those it comes from."),
        ((dh_new * (1 - new**2)).T @ h, "dnew lacks a: only this share of new comes into h'."),
        ((dh_new * a).T @ h, "The slope of tanh is missing: 1 − tanh², which is 1 − new²."),
        tolerance=1e-5,
    )  # fmt: skip
    compare(
        "dh", dh, numeric(loss, h),
        "h reaches h' on two paths: straight, by the share 1 − a, and through R h.",
        (inside @ R, "This is the path through R. The share 1 − a of h that is kept is missing."),
        (dh_new * (1 - a), "This is the straight path. That through R h is missing."),
        (dh_new + inside @ R, "On the straight path not all of h is kept, only 1 − a."),
        (dh_new * (1 - a) + inside @ R.T, "R is the wrong way around: h @ R.T going forward, dinside @ R going back."),
        tolerance=1e-5,
    )  # fmt: skip
    return (
        "The straight path is why a slow unit remembers: its gradient passes by the factor 1 − a and meets no matrix."
    )
