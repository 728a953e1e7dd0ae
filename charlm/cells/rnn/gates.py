"""The equations of gates.h for tensors."""

from charlm.gpu.equations import Equations, Tensors, tanh, where


def with_tanh(maps: "Tensors", before: "Tensors") -> "tuple[Tensors, Tensors]":
    (a,) = maps
    # h_t = tanh(W x_t + b_x + R h_{t−1} + b_h)
    return (tanh(a),), ()


def with_tanh_back(
    before: "Tensors", after: "Tensors", saved: "Tensors", d_after: "Tensors"
) -> "tuple[Tensors, Tensors]":
    (h,) = after
    (d,) = d_after
    # da = dh ⊙ (1 − h²)
    return (d * (1 - h * h),), ()


def with_relu(maps: "Tensors", before: "Tensors") -> "tuple[Tensors, Tensors]":
    (a,) = maps
    # h_t = max(W x_t + b_x + R h_{t−1} + b_h, 0); NaN stays NaN.
    return (where(a < 0, 0.0, a),), ()


def with_relu_back(
    before: "Tensors", after: "Tensors", saved: "Tensors", d_after: "Tensors"
) -> "tuple[Tensors, Tensors]":
    (h,) = after
    (d,) = d_after
    # da = dh where h > 0, else 0
    return (where(h <= 0, 0.0, d),), ()


VARIANTS = (
    Equations(with_tanh, with_tanh_back, gates=1, saved=0, direct=(False,)),
    Equations(with_relu, with_relu_back, gates=1, saved=0, direct=(False,)),
)
"""nonlinearity "tanh", "relu"."""
