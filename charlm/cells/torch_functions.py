"""The functions and methods of torch that a step may call besides charlm's own, as operations of a program."""

import functools
from typing import Any

from charlm.cells.program import BINARY, UNARY

MOST_FACTORS = 8
"""The largest exponent of a power, which becomes a product."""


def _do(op: str, *operands: Any) -> Any:
    """An operation unit by unit, of at least one value."""
    return next(operand for operand in operands if hasattr(operand, "tracing")).tracing.apply(op, *operands)


def _add(a: Any, b: Any, *, alpha: float = 1) -> Any:
    return _do("add", a, alpha * b)


def _sub(a: Any, b: Any, *, alpha: float = 1) -> Any:
    return _do("sub", a, alpha * b)


def _neg(v: Any) -> Any:
    return 0.0 - v


def _abs(v: Any) -> Any:
    return _do("max", v, 0.0 - v)


def _square(v: Any) -> Any:
    return v * v


def _pow(v: Any, exponent: Any) -> Any:
    allowed = (0.5, *range(1, MOST_FACTORS + 1))
    if not isinstance(exponent, int | float) or abs(exponent) not in allowed:
        exponent_text = exponent if isinstance(exponent, int | float) else f"a {type(exponent).__name__}"
        v.tracing.fail(
            f"found {exponent_text} as an exponent; allowed: ±0.5, ±1, …, ±{MOST_FACTORS}; or use exp(b * log(v))"
        )
    if abs(exponent) == 0.5:
        return _do("sqrt", v) if exponent > 0 else _rsqrt(v)
    power = functools.reduce(lambda a, b: a * b, [v] * int(abs(exponent)))
    return power if exponent > 0 else 1 / power


def _reciprocal(v: Any) -> Any:
    return 1 / v


def _rsqrt(v: Any) -> Any:
    return 1 / _do("sqrt", v)


def _clamp(v: Any, min: Any = None, max: Any = None) -> Any:
    v = v if min is None else _do("max", v, min)
    return v if max is None else _do("min", v, max)


def _lerp(start: Any, end: Any, weight: Any) -> Any:
    return start + weight * (end - start)


def _log_sigmoid(v: Any) -> Any:
    return 0.0 - _do("softplus", 0.0 - v)


def _softplus(v: Any, beta: float = 1) -> Any:
    return _do("softplus", v) if beta == 1 else _do("softplus", beta * v) / beta


def _relu(v: Any, inplace: bool = False) -> Any:
    return _do("relu", v)


def _silu(v: Any, inplace: bool = False) -> Any:
    return v * _do("sigmoid", v)


def _leaky_relu(v: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return _do("where", v > 0, v, negative_slope * v)


def _elu(v: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    # The exponent is at most 0: where v > 0, this branch has no gradient, but ∞ times 0 is none either.
    return _do("where", v > 0, v, alpha * (_do("exp", _do("min", v, 0.0)) - 1))


def _detach(v: Any) -> Any:
    return v.tracing.over_units("stop", v)


FUNCTIONS = {
    **{op: functools.partial(_do, op) for op in (*UNARY, *BINARY) if op != "greater"},
    **{"maximum": functools.partial(_do, "max"), "minimum": functools.partial(_do, "min")},
    **{"multiply": functools.partial(_do, "mul"), "where": functools.partial(_do, "where")},
    **dict.fromkeys(("divide", "true_divide"), functools.partial(_do, "div")),
    **{"add": _add, "sub": _sub, "subtract": _sub, "neg": _neg, "negative": _neg, "abs": _abs, "absolute": _abs},
    **{"gt": lambda a, b: a > b, "greater": lambda a, b: a > b, "lt": lambda a, b: a < b, "less": lambda a, b: a < b},
    **{"ge": lambda a, b: a >= b, "greater_equal": lambda a, b: a >= b},
    **{"le": lambda a, b: a <= b, "less_equal": lambda a, b: a <= b},
    **{"square": _square, "pow": _pow, "reciprocal": _reciprocal, "rsqrt": _rsqrt, "clamp": _clamp, "clip": _clamp},
    **{"lerp": _lerp, "logsigmoid": _log_sigmoid, "log_sigmoid": _log_sigmoid, "softplus": _softplus, "relu": _relu},
    **{"silu": _silu, "leaky_relu": _leaky_relu, "elu": _elu, "detach": _detach},
}
"""Functions by the name that torch gives them."""

INSTEAD = {
    **dict.fromkeys(("linear", "matmul", "mm", "addmm", "bmm", "einsum"), "p.product(name, v)"),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack"), "a product of each vector, and their sum"),
    **dict.fromkeys(("chunk", "split", "unbind", "unflatten", "view", "reshape"), "i, f = p.product(name, v, 2)"),
    **{"layer_norm": "normalize(v), or p.layer_norm(v, name)", "rms_norm": "rms_normalize(v)"},
    **dict.fromkeys(("dropout", "bernoulli", "rand_like", "randn_like"), "the dropout and zoneout of the layers"),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like"), "a number"),
}
"""What a step writes instead of functions that need more than one unit, or that do not belong into a step."""
