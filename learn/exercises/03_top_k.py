"""3. Writing: temperature and top-k.

A sample draws each character by the model's probabilities. Two knobs make it tamer. The logits are divided by a
temperature: below 1 the likely characters become more likely still. And only the k likeliest characters stay in play.
"""

import numpy as np
from checking import examine


def probabilities(logits, temperature):
    """softmax(logits / temperature), also for logits in the thousands."""
    scaled = ...
    scaled = scaled - ...  # what can be subtracted from all, so that exp cannot overflow?
    return np.exp(scaled) / ...


def keep_likeliest(p, k):
    """The k likeliest characters keep their share, the others get 0; all sums to 1 again. No two p are equal."""
    least = np.sort(p)[...]  # the smallest that stays; np.sort starts with the smallest of all
    kept = np.where(p >= least, p, 0.0)
    return ...


if __name__ == "__main__":
    examine(globals())
