"""The equations of gates.h for tensors: one highway layer, with the numbers of the paper (Zilly et al. 2017)."""

from charlm.gpu.equations import Equations, Tensors, sigmoid, tanh


def coupled(maps: "Tensors", before: "Tensors") -> "tuple[Tensors, Tensors]":
    a_h, a_g = maps
    (s,) = before
    # h_d = tanh(W_h x [d = 1] + R_h s_{d−1} + b_h)                      (7)
    h = tanh(a_h)
    # g_d = σ(W_g x [d = 1] + R_g s_{d−1} + b_g)                         (8)
    g = sigmoid(a_g)
    # s_d = h_d ⊙ g_d + s_{d−1} ⊙ (1 − g_d)                              (6)
    return (h * g + s * (1 - g),), (h, g)


def coupled_back(
    before: "Tensors", after: "Tensors", saved: "Tensors", d_after: "Tensors"
) -> "tuple[Tensors, Tensors]":
    h, g = saved
    (s,) = before
    (d,) = d_after
    # (6), (7): dh = ds ⊙ g ⊙ (1 − h²)
    da_h = d * g * (1 - h * h)
    # (6), (8): dg = ds ⊙ (h − s_{d−1}) ⊙ g(1 − g)
    da_g = d * (h - s) * g * (1 - g)
    # (6): ds_{d−1} = ds ⊙ (1 − g)
    return (da_h, da_g), (d * (1 - g),)


def uncoupled(maps: "Tensors", before: "Tensors") -> "tuple[Tensors, Tensors]":
    a_h, a_g, a_c = maps
    (s,) = before
    # (7), (8)
    h = tanh(a_h)
    g = sigmoid(a_g)
    # c_d = σ(W_c x [d = 1] + R_c s_{d−1} + b_c)                         (9)
    c = sigmoid(a_c)
    # s_d = h_d ⊙ g_d + s_{d−1} ⊙ c_d                                    (6)
    return (h * g + s * c,), (h, g, c)


def uncoupled_back(
    before: "Tensors", after: "Tensors", saved: "Tensors", d_after: "Tensors"
) -> "tuple[Tensors, Tensors]":
    h, g, c = saved
    (s,) = before
    (d,) = d_after
    # (6), (7): dh = ds ⊙ g ⊙ (1 − h²)
    da_h = d * g * (1 - h * h)
    # (6), (8): dg = ds ⊙ h ⊙ g(1 − g)
    da_g = d * h * g * (1 - g)
    # (6), (9): dc = ds ⊙ s_{d−1} ⊙ c(1 − c)
    da_c = d * s * c * (1 - c)
    # (6): ds_{d−1} = ds ⊙ c
    return (da_h, da_g, da_c), (d * c,)


VARIANTS = (
    Equations(coupled, coupled_back, gates=2, saved=2, direct=(True,)),
    Equations(uncoupled, uncoupled_back, gates=3, saved=3, direct=(True,)),
)
"""couple_gates True, False."""
