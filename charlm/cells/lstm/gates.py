"""The equations of gates.h for tensors. With layer normalization, `maps` and the `c` of `output` are normalized."""

from torch import Tensor

from charlm.gpu.equations import Equations, Parts, Tensors, sigmoid, tanh


def update(maps: "Tensors", before: "Tensors") -> "tuple[Tensors, Tensors]":
    a_i, a_f, a_g, a_o = maps
    _, c = before
    # i, f, g, o = W x_t + b_x + R h_{t−1} + b_h
    i, f, g, o = sigmoid(a_i), sigmoid(a_f), tanh(a_g), sigmoid(a_o)
    # c_t = σ(f) ⊙ c_{t−1} + σ(i) ⊙ tanh(g)
    return (f * c + i * g,), (i, f, g, o)


def output(saved: "Tensors", c: "Tensor") -> "Tensor":
    _, _, _, o = saved
    # h_t = σ(o) ⊙ tanh(c_t), or σ(o) ⊙ tanh(LN(c_t))
    return o * tanh(c)


def output_back(saved: "Tensors", c: "Tensor", dh: "Tensor") -> "tuple[Tensor, Tensor]":
    _, _, _, o = saved
    y = tanh(c)
    # do = dh ⊙ tanh(c) ⊙ σ(o)(1 − σ(o))
    # dc = dh ⊙ σ(o) ⊙ (1 − tanh²(c))
    return dh * y * o * (1 - o), dh * o * (1 - y * y)


def update_back(before: "Tensors", saved: "Tensors", dc: "Tensor") -> "tuple[Tensors, Tensors]":
    _, c = before
    i, f, g, _ = saved
    # di = dc ⊙ tanh(g) ⊙ σ(i)(1 − σ(i))
    da_i = dc * g * i * (1 - i)
    # df = dc ⊙ c_{t−1} ⊙ σ(f)(1 − σ(f))
    da_f = dc * c * f * (1 - f)
    # dg = dc ⊙ σ(i) ⊙ (1 − tanh²(g))
    da_g = dc * i * (1 - g * g)
    # dc_{t−1} = dc ⊙ σ(f)
    return (da_i, da_f, da_g), (dc * f,)


def forward(maps: "Tensors", before: "Tensors") -> "tuple[Tensors, Tensors]":
    after, saved = update(maps, before)
    (c,) = after
    return (output(saved, c), c), saved


def backward(before: "Tensors", after: "Tensors", saved: "Tensors", d_after: "Tensors") -> "tuple[Tensors, Tensors]":
    _, c = after
    dh, dc = d_after
    da_o, through_output = output_back(saved, c, dh)
    others, d_direct = update_back(before, saved, dc + through_output)
    da_i, da_f, da_g = others
    return (da_i, da_f, da_g, da_o), d_direct


PLAIN = Equations(forward, backward, gates=4, saved=4, direct=(False, True))
VARIANTS = (PLAIN, PLAIN._replace(parts=Parts(update, output, output_back, update_back)))
"""layer_norm False, True."""
