"""Functions of the kernels that cells/triton.py writes."""

# Triton turns the numbers that a kernel is called with into its own types.
# pyright: reportArgumentType=false, reportMissingImports=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def exp(x):
    # 2^(a + b), where a = x log₂ e rounded and b is the rounding error; log₂ e is split into 1.442695… in float32 and a
    # remainder. Without b the error grows with |x|, which does not matter in σ and tanh.
    a = x * 1.4426950408889634
    b = tl.fma(x, 1.4426950408889634, -a) + x * 1.9259630335e-8
    return tl.where(tl.abs(x) < 80.0, tl.exp2(a) * (1 + b * 0.6931471805599453), tl.exp(x))


@triton.jit
def log(x):
    return tl.log(x)


@triton.jit
def sqrt(x):
    return tl.sqrt_rn(x)


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    return 2 * sigmoid(2 * x) - 1


@triton.jit
def softplus(x):
    # log(1 + y), y = e^−|x|: the quotient corrects the rounding of 1 + y, so small results are accurate too.
    y = tl.exp(-tl.abs(x))
    rounded = 1 + y
    return relu(x) + tl.where(rounded == 1, y, tl.log(rounded) * (y / (rounded - 1)))


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)  # NaN stays NaN


@triton.jit
def maximum(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def normalize(a, N, epsilon, CENTERED: tl.constexpr, inside):
    """(a − mean) / σ of a row, or a / √(mean a² + ε); 1 / σ, and the mean."""
    mean = 0.0
    if CENTERED:
        mean = tl.sum(tl.where(inside, a, 0.0)) / N
    deviation = tl.where(inside, a - mean, 0.0)
    scale = tl.rsqrt(tl.sum(deviation * deviation) / N + epsilon)
    return deviation * scale, scale, mean


@triton.jit
def normalize_back(d, x, scale, N, CENTERED: tl.constexpr, inside):
    """(dx − mean dx − x ⊙ mean(dx ⊙ x)) / σ, the gradient of a; not centered: without the mean of dx."""
    d = tl.where(inside, d, 0.0)
    x = tl.where(inside, x, 0.0)
    along = x * (tl.sum(d * x) / N)
    if CENTERED:
        d -= tl.sum(d) / N
    return (d - along) * scale
