"""The check of 07_clip.py."""

import numpy as np
from checking import compare, expect


def check(norm, clip):
    gradients = {"W": np.array([[3.0, 0.0], [0.0, 4.0]]), "b": np.array([12.0])}
    compare(
        "norm", norm(gradients), 13.0,
        "The root of the sum of all squares, over all arrays.",
        (17.0, "You added the norms of the arrays. Add the squares of all numbers, then take the root once."),
        (169.0, "The root is missing."),
    )  # fmt: skip
    clipped = clip(gradients, 6.5)
    compare(
        'clip(gradients, 6.5)["b"]', clipped["b"], [6.0],
        "The norm is 13 and the limit 6.5: all gradients become half as large.",
        ([6.5], "Each array is clipped by itself, which changes the direction of the whole. Use one scale for all."),
        ([12.0], "Nothing was clipped, although the norm 13 is above the limit 6.5."),
        ([24.0], "It became longer: limit / norm, not norm / limit."),
    )  # fmt: skip
    compare('clip(gradients, 6.5)["W"]', clipped["W"], gradients["W"] / 2, "Multiply every array by the same scale.")
    compare(
        'clip(gradients, 100)["b"]', clip(gradients, 100)["b"], [12.0],
        "Below the limit nothing changes: the scale is never above 1.",
        ([1200 / 13], "The gradient grew up to the limit. The limit only cuts: the scale is never above 1."),
    )  # fmt: skip
    zero = clip({"b": np.zeros(1)}, 1.0)["b"]
    expect(np.all(np.isfinite(zero)), "clip: a gradient of zeros became NaN. Dividing by its norm is dividing by 0.")
    return "charlm's option for it is optimizer.clip_norm."
