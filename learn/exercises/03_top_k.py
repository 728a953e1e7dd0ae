"""3. Writing: temperature and top-k.

A sample draws each character by the model's probabilities. Two knobs make it tamer. The logits are divided by a
temperature: below 1 the likely characters become more likely still. And only the k likeliest characters stay in play.
"""

import numpy as np
from checking import compare, examine, expect


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


def check():
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
    for large, right in (([5000.0, 4999.0, -9000.0], [0.7310586, 0.2689414, 0]), ([0.0, -9000.0, 9000.0], [0, 0, 1])):
        found = probabilities(np.array(large), 1.0)
        name = f"probabilities({large}, 1)"
        expect(
            np.all(np.isfinite(found)),
            f"{name}: exp overflowed. Softmax does not change if the same number is subtracted from all logits. Which "
            "number makes the largest of them 0?",
        )
        compare(name, found, right, "p = exp(logit / temperature) divided by the sum of these over all characters.")
    p = np.array([0.1, 0.4, 0.2, 0.25, 0.05])
    found = keep_likeliest(p, 2)
    stay = np.count_nonzero(found)
    expect(
        stay == 2, f"keep_likeliest(p, 2): {stay} characters stay in play, not 2. Counted from the end, the last is −1."
    )
    compare(
        "keep_likeliest([0.1, 0.4, 0.2, 0.25, 0.05], 2)", found, [0, 8 / 13, 0, 5 / 13, 0],
        "Those that stay keep their proportions.",
        ([0, 0.4, 0, 0.25, 0], "They sum to 0.65: what the others lost has to be shared out. Divide by the sum."),
    )  # fmt: skip
    return "`charlm sample --temperature 0.7 --top-k 20` does both."


if __name__ == "__main__":
    examine(check)
