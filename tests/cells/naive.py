"""The equations unit by unit, in Python's floats: slow, plain, and written without a look at the code.

Every function takes nested lists: x[t][b][i], first state[b][j], a layer's parameters by name without
their suffix, a mask[b][j] of the state in the recurrent maps, and which part kept[t][b][j] of their
former values the units keep (of h, then of c); it returns y[t][b][j] and the last state (h, c in turn).
"""

import math
from collections.abc import Sequence
from typing import Any

Vector = Sequence[float]
Matrix = Sequence[Vector]


def sigmoid(a: float) -> float:
    return 1 / (1 + math.exp(-a))


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(p * q for p, q in zip(a, b, strict=True))


def normalized(a: Vector, gain: Vector, bias: Vector) -> list[float]:
    mean = math.fsum(a) / len(a)
    variance = math.fsum((v - mean) ** 2 for v in a) / len(a)
    return [g * (v - mean) / math.sqrt(variance + 1e-5) + b for v, g, b in zip(a, gain, bias, strict=True)]


def both_maps(x: Vector, h: Vector, p: dict[str, Any], row: int) -> float:
    """Row `row` of W_x x + b_x + W_h h + b_h."""
    by_x = dot(p["weight_ih"][row], x) + p["bias_ih"][row]
    return by_x + dot(p["weight_hh"][row], h) + p["bias_hh"][row]


def mixed(old: Vector, new: Vector, kept: Vector) -> list[float]:
    return [k * o + (1 - k) * n for o, n, k in zip(old, new, kept, strict=True)]


def rnn_step(
    x: Vector, h: Vector, m: Vector, k: Vector, p: dict[str, Any], nonlinearity: str = "tanh"
) -> tuple[Vector]:
    hm = [a * b for a, b in zip(h, m, strict=True)]
    a = [both_maps(x, hm, p, j) for j in range(len(h))]
    return (mixed(h, [math.tanh(v) if nonlinearity == "tanh" else max(v, 0.0) for v in a], k),)


def gru_step(x: Vector, h: Vector, m: Vector, k: Vector, p: dict[str, Any]) -> tuple[Vector]:
    H = len(h)
    hm = [a * b for a, b in zip(h, m, strict=True)]
    new = []
    for j in range(H):
        r = sigmoid(both_maps(x, hm, p, j))
        z = sigmoid(both_maps(x, hm, p, H + j))
        by_x = dot(p["weight_ih"][2 * H + j], x) + p["bias_ih"][2 * H + j]
        by_h = dot(p["weight_hh"][2 * H + j], hm) + p["bias_hh"][2 * H + j]
        new.append((1 - z) * math.tanh(by_x + r * by_h) + z * h[j])
    return (mixed(h, new, k),)


def lstm_step(
    x: Vector, h: Vector, c: Vector, m: Vector, k: Vector, p: dict[str, Any], layer_norm: bool = False
) -> tuple[Vector, Vector]:
    H = len(h)
    hm = [a * b for a, b in zip(h, m, strict=True)]
    gates = [[both_maps(x, hm, p, gate * H + j) for j in range(H)] for gate in range(4)]
    if layer_norm:
        gains, biases = p["weight_ln_gates"], p["bias_ln_gates"]
        gates = [normalized(a, gain, bias) for a, gain, bias in zip(gates, gains, biases, strict=True)]
    i, f, g, o = gates
    new_c = [sigmoid(f[j]) * c[j] + sigmoid(i[j]) * math.tanh(g[j]) for j in range(H)]
    seen = normalized(new_c, p["weight_ln_cell"], p["bias_ln_cell"]) if layer_norm else new_c
    new_h = [sigmoid(o[j]) * math.tanh(seen[j]) for j in range(H)]
    return mixed(h, new_h, k[:H]), mixed(c, new_c, k[H:])


def rhn_step(
    x: Vector, s: Vector, m: Vector, k: Vector, p: dict[str, Any], depth: int = 5, couple_gates: bool = True
) -> tuple[Vector]:
    H, first = len(s), s

    def linear(s: Vector, d: int, row: int) -> float:
        sm = [a * b for a, b in zip(s, m, strict=True)]
        by_x = dot(p["weight_ih"][row], x) if d == 0 else 0.0
        return by_x + dot(p["weight_hh"][d][row], sm) + p["bias_hh"][d][row]

    for d in range(depth):
        h = [math.tanh(linear(s, d, j)) for j in range(H)]
        g = [sigmoid(linear(s, d, H + j)) for j in range(H)]
        c = [1 - g[j] if couple_gates else sigmoid(linear(s, d, 2 * H + j)) for j in range(H)]
        s = [h[j] * g[j] + s[j] * c[j] for j in range(H)]
    return (mixed(first, s, k),)


def slstm_step(
    x: Vector, h: Vector, c: Vector, n: Vector, m: Vector, mask: Vector, k: Vector, p: dict[str, Any],
    forget_gate: str = "sigmoid",
) -> tuple[Vector, Vector, Vector, Vector]:  # fmt: skip
    H = len(h)
    hm = [a * b for a, b in zip(h, mask, strict=True)]
    i, f, z, o = [
        [dot(p["weight_ih"][row], x) + dot(p["weight_hh"][row], hm) + p["bias"][row] for row in range(g * H, g * H + H)]
        for g in range(4)
    ]
    # c and n without the stabilizer, which only rescales them.
    real_c, real_n = ([s[j] * math.exp(m[j]) for j in range(H)] for s in (c, n))
    forget = [sigmoid(a) if forget_gate == "sigmoid" else math.exp(a) for a in f]
    real_c = [forget[j] * real_c[j] + math.exp(i[j]) * math.tanh(z[j]) for j in range(H)]
    real_n = [forget[j] * real_n[j] + math.exp(i[j]) for j in range(H)]
    new_h = [sigmoid(o[j]) * real_c[j] / real_n[j] for j in range(H)]
    new_m = [max(math.log(forget[j]) + m[j], i[j]) for j in range(H)]
    new_c, new_n = ([s[j] * math.exp(-new_m[j]) for j in range(H)] for s in (real_c, real_n))
    return mixed(h, new_h, k[:H]), new_c, new_n, new_m


STEPS = {"rnn": rnn_step, "lstm": lstm_step, "gru": gru_step, "rhn": rhn_step, "slstm": slstm_step}


def layer(
    kind: str, options: dict[str, Any], x: Any, state: list[Any], p: dict[str, Any], mask: Any, kept: Any
) -> tuple[list[Any], list[Any]]:
    """All steps and streams of one layer."""
    streams = range(len(state[0]))
    per_stream = [[part[b] for part in state] for b in streams]
    y = []
    for x_t, k_t in zip(x, kept, strict=True):
        per_stream = [list(STEPS[kind](x_t[b], *per_stream[b], mask[b], k_t[b], p, **options)) for b in streams]
        y.append([per_stream[b][0] for b in streams])
    return y, [[per_stream[b][part] for b in streams] for part in range(len(state))]
