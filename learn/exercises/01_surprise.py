"""1. Surprise: what a score in nats per character means.

A model gave the characters that really came the probabilities p. Its surprise at one of them is −log p: 0 if it was
certain, and larger the less it expected the character. The score of a text is the mean over all characters. (The loss
that training lowers is the sum over a window of T steps, T times as much.)

The natural logarithm gives nats, the logarithm to base 2 bits. Perplexity says how many equally likely characters
would be as hard to guess.
"""

import numpy as np
from checking import examine


def surprise(p):
    """The mean surprise in nats; p is an array of probabilities."""
    return ...


def bits(nats):
    """The same in bits."""
    return ...


def perplexity(nats):
    """The number of equally likely characters."""
    return ...


if __name__ == "__main__":
    examine(globals())
