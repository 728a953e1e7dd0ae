"""The check of 06_vanishing.py."""

import numpy as np
from checking import compare, numeric


def check(jacobian, reach):
    rng = np.random.default_rng(1)
    R, h = rng.normal(size=(3, 3)) * 0.7, rng.normal(size=3)
    states = [np.tanh(R @ h)]
    for _ in range(5):
        states.append(np.tanh(R @ states[-1] + rng.normal(size=3)))
    right = np.stack([numeric(lambda unit=unit: np.tanh(R @ h)[unit], h) for unit in range(3)])
    slope = 1 - states[0] ** 2
    compare(
        "jacobian(h_t, R)", jacobian(states[0], R), right,
        "Row i: the slope of tanh at unit i, 1 − h_t[i]², times row i of R.",
        (R * slope, "The slope multiplies the columns. It is the slope of unit i, so of row i: slope[:, None]."),
        (R, "The slope of tanh is missing: 1 − h_t²."),
        (right.T, "It is transposed: row i belongs to unit i of h_t."),
        tolerance=1e-5,
    )  # fmt: skip

    def norms(multiply):
        product, found = np.eye(3), []
        for h_t in reversed(states):
            product = multiply(product, R * (1 - h_t**2)[:, None])
            found.append(np.linalg.norm(product))
        return found

    compare(
        "reach(states, R)", reach(states, R), norms(lambda product, J: product @ J),
        "∂h_T/∂h_{T−2} = J_T J_{T−1}: each step back multiplies the product by one more Jacobian.",
        (norms(lambda product, J: J @ product), "The order matters: the Jacobian of the earlier step stands right."),
        (norms(lambda product, J: product * J), "`*` multiplies entry by entry. The chain rule needs `@`."),
    )  # fmt: skip
    R, h, states = np.linalg.qr(rng.normal(size=(64, 64)))[0], np.zeros(64), []
    for _ in range(100):
        h = np.tanh(R @ h + rng.normal(size=64))
        states.append(h)
    one, ten, fifty = (reach(states, R)[k - 1] for k in (1, 10, 50))
    return (
        f"With 64 units and an orthogonal R, {ten / one:.0e} of it is left after 10 steps, {fifty / one:.0e} after 50."
    )
