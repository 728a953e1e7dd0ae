"""The check of 02_count.py."""

import numpy as np
from checking import close, compare, expect


def check(count, probabilities, score):
    ids = np.array([0, 1, 1, 1, 2, 0, 1])
    right = np.array([[0.0, 2, 0], [0, 2, 1], [1, 0, 0]])
    compare(
        'count("abbbcab")', count(ids, 3), right,
        "a is the text without its last character, b the text without its first.",
        (right.T, "a and b are exchanged: the row is the character that came first."),
    )  # fmt: skip
    smooth = right + 1
    p = probabilities(right)
    expect(close(np.shape(p), (3, 3)), f"probabilities: found the shape {list(np.shape(p))}, expected [3, 3].")
    expect(np.all(np.asarray(p) > 0), "probabilities: one of them is 0, or not a number. Add 1 to every count first.")
    compare(
        "probabilities(counts)", p, smooth / smooth.sum(1, keepdims=True),
        "Divide every count by the sum of its row.",
        (smooth / smooth.sum(0), "The columns sum to 1. But after each a some b must come: the rows have to, axis=1."),
        (smooth / smooth.sum(1), "Row sums have the shape [V] and are laid along the columns. Use keepdims=True."),
        (smooth / smooth.sum(), "The whole table sums to 1. But after each a some b must come: each row has to."),
    )  # fmt: skip
    p = smooth / smooth.sum(1, keepdims=True)
    nats = -np.log(p[ids[:-1], ids[1:]])
    compare(
        "score(p, ids)", score(p, ids), nats.mean(),
        "Look up p of each pair of the text, p[a, b], and take the mean of −log.",
        (nats.sum(), "This is the sum. The score is a mean."),
        (-nats.mean(), "Surprise is −log p."),
        (-np.log(p).mean(), "This is the mean over the table. A pair counts as often as the text has it."),
    )  # fmt: skip
    return (
        "On tinyshakespeare this model scores about 2.5 nats. What a network scores below that, it owes to its memory."
    )
