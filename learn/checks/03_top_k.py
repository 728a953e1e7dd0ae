"""The check of 03_top_k.py."""

import numpy as np
from checking import compare, expect


def check(probabilities, keep_likeliest):
    logits = np.array([2.0, 1.0, 0.0])

    def softmax(v):
        return np.exp(v) / np.exp(v).sum()

    compare(
        "probabilities([2, 1, 0], temperature=0.5)", probabilities(logits, 0.5), softmax(logits / 0.5),
        "p = exp(logit / temperature) divided by the sum of these over all characters.",
        (softmax(logits * 0.5), "You multiplied by the temperature. A low one must widen the differences: divide."),
        (softmax(logits), "The temperature has no effect: divide the logits by it."),
        (np.exp((logits - 2) / 0.5), "They have to sum to 1: divide by the sum, not by the largest."),
    )  # fmt: skip
    for large, temperature, right in (
        ([5000.0, 4999.0, -9000.0], 0.5, [0.8807971, 0.1192029, 0]),
        ([0.0, -9000.0, 9000.0], 1.0, [0, 0, 1]),
    ):
        found = probabilities(np.array(large), temperature)
        name = f"probabilities({large}, {temperature})"
        expect(
            np.all(np.isfinite(found)),
            f"{name}: not a number, because exp overflowed, or was 0 for all. Softmax does not change if the same "
            "number is subtracted from all. Which one makes the largest 0, after the division by the temperature?",
        )
        compare(name, found, right, "p = exp(logit / temperature) divided by the sum of these over all characters.")
    p = np.array([0.1, 0.4, 0.2, 0.25, 0.05])
    for k, kept in (2, [0, 0.4, 0, 0.25, 0]), (3, [0, 0.4, 0.2, 0.25, 0]):
        found, name = keep_likeliest(p, k), f"keep_likeliest([0.1, 0.4, 0.2, 0.25, 0.05], {k})"
        stay = np.count_nonzero(found)
        expect(stay == k, f"{name}: {stay} characters stay in play, not {k}. Counted from the end, the last is −1.")
        compare(
            name, found, kept / np.sum(kept),
            "Those that stay keep their proportions.",
            (kept, f"They sum to {sum(kept):.2f}: the others' share has to be shared out. Divide by the sum."),
        )  # fmt: skip
    return "`charlm sample --temperature 0.7 --top-k 20` does both."
