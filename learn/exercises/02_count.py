"""2. Counting pairs: the model to beat.

The simplest model has a memory of one character. It counts which character b came after which a, and guesses by these
counts. A pair that it has never seen would get the probability 0 and an infinite surprise. So 1 is added to each count.
"""

import numpy as np
from checking import examine


def count(ids, V):
    """counts[a, b]: how often b came right after a. ids: the text, as places in a vocabulary of V characters."""
    counts = np.zeros((V, V))
    a = ...  # all characters that have one after them
    b = ...  # the one after each of these
    np.add.at(counts, (a, b), 1)  # unlike counts[a, b] += 1, it counts a pair as often as it comes
    return counts


def probabilities(counts):
    """p[a, b]: the probability of b after a, once 1 has been added to every count."""
    more = ...
    return ...


def score(p, ids):
    """The mean surprise, in nats, at each character of a text except the first."""
    return ...


if __name__ == "__main__":
    examine(globals())
