"""The equations of gates.h for tensors, with the numbers used there."""

from charlm.gpu.equations import Equations, Tensors, sigmoid, tanh


def forward(maps: "Tensors", before: "Tensors") -> "tuple[Tensors, Tensors]":
    a_r, a_z, n_x, n_h = maps
    (h,) = before
    # r = σ(W_ir x + b_ir + W_hr h_{t−1} + b_hr)                          (5)
    r = sigmoid(a_r)
    # z = σ(W_iz x + b_iz + W_hz h_{t−1} + b_hz)                          (6)
    z = sigmoid(a_z)
    # n = tanh(W_in x + b_in + r ⊙ (W_hn h_{t−1} + b_hn))                 (8)
    n = tanh(n_x + r * n_h)
    # h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}                                     (7)
    return (n + z * (h - n),), (r, z, n, n_h)


def backward(before: "Tensors", after: "Tensors", saved: "Tensors", d_after: "Tensors") -> "tuple[Tensors, Tensors]":
    r, z, n, n_h = saved
    (h,) = before
    (d,) = d_after
    # (6), (7): dz = dh ⊙ (h_{t−1} − n) ⊙ z(1 − z)
    da_z = d * (h - n) * z * (1 - z)
    # (7), (8): dn = dh ⊙ (1 − z) ⊙ (1 − n²); through r it reaches n_h.
    dn_x = d * (1 - z) * (1 - n * n)
    # (5), (8): dr = dn ⊙ n_h ⊙ r(1 − r)
    da_r = dn_x * n_h * r * (1 - r)
    # (7): dh_{t−1} = dh ⊙ z
    return (da_r, da_z, dn_x, dn_x * r), (d * z,)


VARIANTS = (Equations(forward, backward, gates=3, saved=4, direct=(True,), apart=1),)
