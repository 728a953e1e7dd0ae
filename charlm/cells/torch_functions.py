"""The functions and methods of torch that a step may call besides charlm's own, as operations of a program."""

import functools
import operator
from collections.abc import Callable
from typing import Any

from charlm.cells.operations import OPERATIONS

MOST_FACTORS = 8
"""The largest exponent of a power, which becomes a product."""


def _do(op: str, *operands: Any) -> Any:
    """An operation unit by unit, of at least one value."""
    return next(operand for operand in operands if hasattr(operand, "tracing")).tracing.apply(op, *operands)


def _of_vectors(op: str, v: Any, other: Any) -> Any:
    """An operation for which torch takes no number."""
    if not hasattr(other, "tracing"):
        v.tracing.fail(f"torch's {op} of a vector and {other!r:.40}; allowed: two vectors, or {op} of charlm.cells")
    return _do({"maximum": "max", "minimum": "min"}[op], v, other)


def _lerp(start: Any, end: Any, weight: Any) -> Any:
    if not hasattr(end, "tracing"):
        start.tracing.fail(f"lerp to {end!r:.40}; allowed: a vector")
    return start + start.tracing.value(weight) * (end - start)


def _power(v: Any, exponent: Any) -> Any:
    allowed = (0.5, *range(1, MOST_FACTORS + 1))
    if not isinstance(exponent, int | float) or abs(exponent) not in allowed:
        exponent_text = exponent if isinstance(exponent, int | float) else f"a {type(exponent).__name__}"
        v.tracing.fail(
            f"found {exponent_text} as an exponent; allowed: ±0.5, ±1, …, ±{MOST_FACTORS}; or use exp(b * log(v))"
        )
    factors = [_do("sqrt", v)] if abs(exponent) == 0.5 else [v] * int(abs(exponent))
    power = functools.reduce(operator.mul, factors)
    return power if exponent > 0 else 1 / power


def _clamp(v: Any, min: Any = None, max: Any = None) -> Any:
    if len({hasattr(bound, "tracing") for bound in (min, max) if bound is not None}) != 1:
        v.tracing.fail("clamp with no bound, or with a number and a vector; allowed: numbers, or vectors")
    v = v if min is None else _do("max", v, min)
    return v if max is None else _do("min", v, max)


def _softplus(v: Any, beta: float = 1) -> Any:
    return _do("softplus", v) if beta == 1 else _do("softplus", beta * v) / beta


def _elu(v: Any, alpha: float = 1.0) -> Any:
    # The exponent is at most 0: where v > 0, this branch has no gradient, but ∞ times 0 is none either.
    return _do("where", v > 0, v, alpha * (_do("exp", _do("min", v, 0.0)) - 1))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{operation.torch or op: functools.partial(_do, op) for op, operation in OPERATIONS.items()},
    "add": lambda a, b, *, alpha=1: _do("add", a, alpha * b),
    "sub": lambda a, b, *, alpha=1: _do("sub", a, alpha * b),
    "neg": lambda v: 0.0 - v,
    "abs": lambda v: _do("max", v, 0.0 - v),
    "square": lambda v: v * v,
    "pow": _power,
    "reciprocal": lambda v: 1 / v,
    "rsqrt": lambda v: 1 / _do("sqrt", v),
    "clamp": _clamp,
    **{op: functools.partial(_of_vectors, op) for op in ("maximum", "minimum")},
    "lerp": _lerp,
    "log_sigmoid": lambda v: 0.0 - _do("softplus", 0.0 - v),
    "softplus": _softplus,
    "silu": lambda v: v * _do("sigmoid", v),
    "leaky_relu": lambda v, negative_slope=0.01: _do("where", v > 0, v, negative_slope * v),
    "elu": _elu,
    "detach": lambda v: v.tracing.over_units("stop", v),
    "gt": lambda a, b: a > b,
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "le": lambda a, b: a <= b,
    "logical_and": operator.and_,
    "logical_or": operator.or_,
    "logical_not": operator.invert,
}
"""Functions by the name that torch gives them. Most are methods of tensors, too."""
_ALIASES = {
    **{"max": "maximum", "min": "minimum", "multiply": "mul", "divide": "div", "true_divide": "div"},
    **{"subtract": "sub", "negative": "neg", "absolute": "abs", "clip": "clamp", "logsigmoid": "log_sigmoid"},
    **{"bitwise_and": "logical_and", "bitwise_or": "logical_or", "bitwise_not": "logical_not"},
    **{"greater": "gt", "less": "lt", "greater_equal": "ge", "less_equal": "le"},
}
FUNCTIONS |= {alias: FUNCTIONS[name] for alias, name in _ALIASES.items()}

NO_METHODS = {
    **{"log_sigmoid": "log_sigmoid(v)", "logsigmoid": "log_sigmoid(v)", "softplus": "softplus(v)"},
    **{name: f"torch.nn.functional.{name}(v)" for name in ("silu", "elu", "leaky_relu")},
}
"""Functions that tensors do not have as methods, and what a step writes for them."""

INSTEAD = {
    **dict.fromkeys(("linear", "matmul", "mm", "addmm", "bmm", "einsum"), "p.product(name, v)"),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack"), "a product of each vector, and their sum"),
    **dict.fromkeys(("chunk", "split", "unbind", "unflatten", "view", "reshape"), "i, f = p.product(name, v, 2)"),
    **{"layer_norm": "normalize(v), or p.layer_norm(v, name)", "rms_norm": "rms_normalize(v)"},
    **dict.fromkeys(("dropout", "bernoulli", "rand_like", "randn_like"), "the dropout and zoneout of the layers"),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like"), "a number"),
    **dict.fromkeys(("shape", "size", "dim", "ndim", "numel"), "self.hidden or another option"),
    **dict.fromkeys(
        ("mean", "sum", "prod", "var", "std", "norm", "amax", "amin", "argmax", "softmax", "logsumexp", "cumsum"),
        "normalize(v) or rms_normalize(v), or p.product(name, v), which learns sums over units,",
    ),
}
"""What a step writes instead of functions that need more than one unit, or that do not belong into a step."""
