"""The check of 09_gru.py."""

import numpy as np
from checking import compare


def check(step):
    h = np.array([[0.5, -0.3]])

    def probe(r, z, n_x, n_h):
        """A step with saturated gates: 100 opens one, −100 closes it."""
        Wx = np.array([[r, r, z, z, n_x, n_x]], dtype=float)
        return step(Wx, np.array([[0, 0, 0, 0, n_h, n_h]], dtype=float), h)

    candidate = np.tanh([[0.2, 0.2]])
    compare(
        "z = 1", probe(0, 100, 0.2, 0.7), h,
        "With z = 1 the state stays as it is.",
        (np.tanh([[0.55, 0.55]]), "z and 1 − z are exchanged: here z keeps the old state."),
        (2 * h, "Old and new must share: z of the one, 1 − z of the other."),
    )  # fmt: skip
    compare(
        "z = 0, r = 0", probe(-100, -100, 0.2, 0.7), candidate,
        "With z = 0 the candidate replaces the state, and with r = 0 it sees the input alone.",
        (np.tanh([[0.9, 0.9]]), "The reset gate has no effect: multiply n_h by r."),
        ([[0.0, 0.0]], "The reset gate closes the input too. It acts on n_h alone."),
        ([[0.2, 0.2]], "The candidate lacks its tanh."),
        (np.tanh([[0.7, 0.7]]), "The reset gate acts on n_x. It must act on n_h."),
    )  # fmt: skip
    compare(
        "z = 0, r = 1", probe(100, -100, 0.2, 0.7), np.tanh([[0.9, 0.9]]),
        "With r = 1 the candidate sees both parts, n_x + n_h.",
        (candidate, "The candidate sees the input alone, although the reset gate is open: n_h is missing."),
    )  # fmt: skip
    Wx, Rh = np.array([[0.1, -0.4, 0.3, 0.8, -0.6, 0.2]]), np.array([[0.5, 0.2, -0.7, 0.4, 0.9, -0.1]])
    compare(
        "a step with all gates half open", step(Wx, Rh, h), [[0.18933674, -0.19496712]],
        "Each gate adds its parts of x and of h, then takes the sigmoid.",
    )  # fmt: skip
    return "In charlm it is `--set model.cell.kind=gru`; `charlm cells show gru` prints these lines."
