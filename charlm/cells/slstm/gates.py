"""The equations of gates.h for tensors, with the numbers of the paper (Beck et al. 2024)."""

from torch import Tensor

from charlm.gpu.equations import Equations, Tensors, exp, log_sigmoid, maximum, sigmoid, tanh, where


def with_sigmoid(maps: "Tensors", before: "Tensors") -> "tuple[Tensors, Tensors]":
    _, a_f, _, _ = maps
    # f_t = σ(a_f)                                                    (13)
    return step(maps, before, log_sigmoid(a_f), sigmoid(-a_f))


def with_exponential(maps: "Tensors", before: "Tensors") -> "tuple[Tensors, Tensors]":
    _, a_f, _, _ = maps
    # f_t = exp(a_f)                                                  (13)
    return step(maps, before, a_f, a_f * 0 + 1)


def step(maps: "Tensors", before: "Tensors", log_f: "Tensor", slope: "Tensor") -> "tuple[Tensors, Tensors]":
    """slope: d log f_t / d a_f."""
    log_i, _, a_z, a_o = maps  # i_t = exp(a_i)                         (12)
    _, c, n, m = before
    # m_t = max(log f_t + m_{t−1}, log i_t)                           (15)
    old = log_f + m
    m_t = maximum(old, log_i)
    # i'_t = exp(log i_t − m_t), f'_t = exp(log f_t + m_{t−1} − m_t)  (16), (17)
    i, f = exp(bounded(log_i - m_t)), exp(bounded(old - m_t))
    # c_t = f'_t ⊙ c_{t−1} + i'_t ⊙ z_t, z_t = tanh(a_z)              (8), (11)
    z = tanh(a_z)
    c_t = f * c + i * z
    # n_t = f'_t ⊙ n_{t−1} + i'_t                                     (9)
    n_t = f * n + i
    # h_t = o_t ⊙ c_t / n_t, o_t = σ(a_o)                             (10), (14)
    o = sigmoid(a_o)
    return (o * (c_t / n_t), c_t, n_t, m_t), (i, f, z, o, slope)


def bounded(exponent: "Tensor") -> "Tensor":
    """LEAST_EXPONENT at least, so that n stays above 0 in single precision."""
    return where(exponent < -87.0, -87.0, exponent)


def backward(before: "Tensors", after: "Tensors", saved: "Tensors", d_after: "Tensors") -> "tuple[Tensors, Tensors]":
    i, f, z, o, slope = saved
    _, c_old, n_old, _ = before
    _, c, n, _ = after
    dh, dc, dn, dm = d_after
    # (10): d(c/n) = dh ⊙ o, which adds to dc and dn; (14): do = dh ⊙ c/n ⊙ o(1 − o)
    y, dy = c / n, dh * o / n
    dc = dc + dy
    dn = dn - dy * y
    da_o = dh * y * o * (1 - o)
    # (8), (11): dz = dc ⊙ i' ⊙ (1 − z²)
    da_z = dc * i * (1 - z * z)
    # (16), (17): gradients of the exponents log i − m and log f + m_{t−1} − m
    d_i, d_f = (dc * z + dn) * i, (dc * c_old + dn * n_old) * f
    # i' at its bound, e^−87 = 1.646e-38, has no gradient. f' at its bound makes d_f 0 without a test.
    d_i = where(i <= 1.65e-38, 0.0, d_i)
    # (15): the gradient of m goes to the greater of the two, whose gate after stabilization is 1.
    dm = dm - d_i - d_f
    da_i = where(f == 1, d_i, d_i + dm)
    d_log_f = where(f == 1, d_f + dm, d_f)
    # (13); (8), (9): gradients of c_{t−1} and n_{t−1}
    return (da_i, d_log_f * slope, da_z, da_o), (dc * f, dn * f, d_log_f)


VARIANTS = (
    Equations(with_sigmoid, backward, gates=4, saved=5, direct=(False, True, True, True)),
    Equations(with_exponential, backward, gates=4, saved=5, direct=(False, True, True, True)),
)
"""forget_gate "sigmoid", "exponential"."""
