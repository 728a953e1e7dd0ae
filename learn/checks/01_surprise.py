"""The check of 01_surprise.py."""

import numpy as np
from checking import compare


def check(surprise, bits, perplexity):
    p = np.array([0.5, 0.25, 0.125])
    compare(
        "surprise([1/2, 1/4, 1/8])", surprise(p), 2 * np.log(2),
        "Take the logarithm of each probability, then the mean.",
        (-2 * np.log(2), "Probabilities are below 1, so their logarithms are negative. Surprise is not."),
        (6 * np.log(2), "This is the sum over all characters. The score is their mean."),
        (2.0, "These are bits: the logarithm to base 2. Nats need the natural logarithm."),
        (-np.log(p.mean()), "You took the mean first. Each character has its own surprise; average those."),
    )  # fmt: skip
    compare(
        "bits(log 2)", bits(np.log(2)), 1.0,
        "A fair coin has log 2 nats, which is 1 bit. So one unit is log 2 times the other.",
        (np.log(2) ** 2, "You multiplied where you should divide: a nat is 1.44 bits, so there are more bits."),
    )  # fmt: skip
    compare(
        "perplexity(log 65)", perplexity(np.log(65)), 65.0,
        "Guessing evenly among n characters costs log n nats. Undo the logarithm.",
        (2 ** np.log(65), "2 to this power is right for bits. Nats belong to e."),
    )  # fmt: skip
    return f"1.4 nats are {bits(1.4):.2f} bits: as hard as guessing evenly among {perplexity(1.4):.1f} characters."
