"""The check of 08_forget_bias.py."""

import numpy as np
from checking import compare


def check(share_left, half_life, bias_for):
    gate = 1 / (1 + np.exp(-1.0))
    compare(
        "share_left(1, 3)", share_left(1.0, 3), gate**3,
        "The gate is σ(bias). Three steps multiply by it three times.",
        (gate * 3, "You multiplied the gate by the number of steps. Every step multiplies once more: a power."),
        (1.0, "The bias is not the gate yet: the gate is σ(bias)."),
        (1 / (1 + np.exp(-3.0)), "The sigmoid comes first, then the power."),
        (np.exp(-3.0), "The gate is σ(bias) = 1 / (1 + exp(−bias))."),
    )  # fmt: skip
    compare(
        "half_life(1)", half_life(1.0), np.log(0.5) / np.log(gate),
        "Solve gate^n = 1/2 for n: take logarithms on both sides.",
        (np.log(gate) / np.log(0.5), "It is upside down: n log gate = log ½."),
        (-np.log(0.5) / np.log(gate), "Both logarithms are negative, so their ratio is positive."),
    )  # fmt: skip
    compare(
        "bias_for(100)", bias_for(100), -np.log(2**0.01 - 1),
        "Solve gate^n = 1/2 for the gate, the n-th root of ½. Then undo the sigmoid.",
        (0.5**0.01, "This is the gate. Which bias has this sigmoid?"),
        (-np.log(1 / 0.5**0.01), "This is log gate. The inverse of the sigmoid is log(gate / (1 − gate))."),
    )  # fmt: skip
    return (
        f"With charlm's initial bias, 1, half is forgotten after {half_life(1.0):.1f} characters. To keep half for 100 "
        f"takes {bias_for(100):.1f}. Training finds such gates: see the units in `charlm look`."
    )
