"""The symbols on which a step is traced: they record what it computes, and refuse what a program cannot say."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from charlm.cells.operations import OPERATIONS
from charlm.cells.program import Node

if TYPE_CHECKING:
    from charlm.cells.step import Parameters

ALLOWED = (
    "allowed: + − × ÷, powers, < and >, exp, log, tanh, sigmoid, softplus, log_sigmoid, relu, sqrt, abs, clamp, "
    "maximum, minimum, where, normalize, rms_normalize, stop_gradient, and products and parameters by p"
)


def _operator(op: str, *, reflected: bool = False) -> Callable[[Value, Any], Value]:
    """The method of an operator; reflected: of the value on its right."""

    def method(self: Value, other: Any) -> Value:
        operands = (other, self) if reflected else (self, other)
        return self.tracing.apply(op, *operands)

    return method


def _comparison(*, reflected: bool = False, inverted: bool = False) -> Callable[[Value, Any], Condition]:
    """The method of a > b; reflected: of b > a; inverted: where that does not hold. So a >= b is b > a, inverted."""

    def method(self: Value, other: Any) -> Condition:
        operands = (other, self) if reflected else (self, other)
        return Condition(self.tracing, self.tracing.apply("greater", *operands).place, inverted)

    return method


def _logical(sign: str, op: str) -> Callable[[Value, Any], Condition]:
    """The method of an operator between comparisons; op: of their numbers, above 0 where the result holds."""

    def method(self: Value, other: Any) -> Condition:
        if not isinstance(self, Condition) or not isinstance(other, Condition):
            self.tracing.fail(
                f"{sign} needs comparisons on both sides; allowed: for example where((a > 0) {sign} (b > 0), a, b)"
            )
        return self.tracing.apply(op, self.number, other.number) > 0

    return method


def _refused(fault: str) -> Any:
    """The method of what a program cannot say."""

    def method(self: Value, *args: Any, **kwargs: Any) -> NoReturn:
        self.tracing.fail(fault)

    return method


class Value:
    """A symbolic vector, or several side by side: how it is computed, without numbers."""

    def __init__(self, tracing: Parameters, place: int) -> None:
        self.tracing, self.place = tracing, place

    @property
    def node(self) -> Node:
        return self.tracing.builder.nodes[self.place]

    def __iter__(self) -> Iterator[Value]:
        """The vectors that are side by side."""
        places = [self.tracing.builder.part(self.place, k) for k in range(len(self))]
        return iter([Value(self.tracing, place) for place in places])

    def __len__(self) -> int:
        """How many vectors are side by side; with one, an error that says so: of a tensor it is the batch size."""
        if self.node.count == 1:
            self.tracing.fail(
                "found one vector where several are expected, as by len, sum or a loop; allowed: products and vectors "
                "with gates; a state is a vector of H units, without batch and time; write self.hidden for H, and "
                "p.product for a sum over units"
            )
        return self.node.count

    def __getitem__(self, index: int) -> Value:
        if type(index) is not int or not -len(self) <= index < len(self):
            found = "a slice" if isinstance(index, slice | tuple) else f"{index!r:.40}"
            self.tracing.fail(f"found {found} as an index; allowed: 0 to {len(self) - 1}, one of the gates")
        return list(self)[index]

    # torch would change a tensor under all its names, and vectors that share its memory.
    __setitem__ = __iadd__ = __isub__ = __imul__ = __itruediv__ = __ipow__ = __iand__ = __ior__ = _refused(
        "a vector is changed in place, as by a += b; allowed: a new one, as by a = a + b"
    )
    __bool__ = _refused("a branch on a value, which a trace does not know; use where(condition, a, b)")
    __float__ = __int__ = __index__ = _refused(f"a number is needed where a vector was found; {ALLOWED}")
    __array__ = _refused(f"an array of numpy of vectors, which a trace does not know; {ALLOWED}")
    __array_ufunc__ = None  # numpy then refuses its functions, and leaves operators to this class
    __matmul__ = __rmatmul__ = _refused('a product with @; allowed: p.product("weight", x), which declares the matrix')
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __round__ = _refused(
        f"an operation that a step does not have; {ALLOWED}"
    )
    __eq__ = _refused(f"a comparison with == or !=; {ALLOWED}")
    __hash__ = None  # type: ignore[assignment]

    __and__ = _logical("&", "mul")
    __or__ = _logical("|", "add")

    __gt__ = _comparison()
    __lt__ = _comparison(reflected=True)
    __ge__ = _comparison(reflected=True, inverted=True)
    __le__ = _comparison(inverted=True)

    __add__ = _operator("add")
    __radd__ = _operator("add", reflected=True)
    __sub__ = _operator("sub")
    __rsub__ = _operator("sub", reflected=True)
    __mul__ = _operator("mul")
    __rmul__ = _operator("mul", reflected=True)
    __truediv__ = _operator("div")
    __rtruediv__ = _operator("div", reflected=True)

    def __pow__(self, exponent: Any) -> Value:
        return _power(self, exponent)

    def __neg__(self) -> Value:
        return self.tracing.apply("sub", 0.0, self)

    def __abs__(self) -> Value:
        return self.tracing.apply("max", self, -self)

    def where(self, condition: Any, other: Any) -> Value:
        """torch's method: the vector itself where the condition holds."""
        return self.tracing.apply("where", condition, self, other)

    def __getattr__(self, name: str) -> Any:
        """Methods of tensors that are operations, as `x.tanh()`."""
        if name in FUNCTIONS and name not in NO_METHODS:
            return functools.partial(FUNCTIONS[name], self)
        fault = f"a vector of a step, such as a state of H units, has no {name}"
        raise AttributeError(f"{fault}; {_instead(name)}", name=name, obj=self)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Value:
        """Functions of torch that are operations, as torch.tanh(x)."""
        tracing = next(_values([*args, *(kwargs or {}).values()])).tracing
        name, options = getattr(function, "__name__", str(function)), dict(kwargs or {})
        if name not in FUNCTIONS:
            tracing.fail(f"torch's {name} is no operation of a step; {_instead(name)}")
        if options.pop("inplace", False):
            tracing.fail(f"torch's {name} with inplace=True, which changes a vector; allowed: inplace=False")
        if name != "where" and not (args and isinstance(args[0], Value)):
            tracing.fail(f"torch's {name}: the first argument is not a vector; allowed: {name}(v)")
        try:
            return FUNCTIONS[name](*args, **options)
        except TypeError:
            known = "the vectors, and bounds or slopes as numbers"
            tracing.fail(f"torch's {name} with unknown arguments; allowed: {known}")


class Condition(Value):
    """A comparison: what `where` takes."""

    def __init__(self, tracing: Parameters, place: int, inverted: bool = False) -> None:
        super().__init__(tracing, place)
        self.inverted = inverted
        """Whether it holds where the node does not."""

    def __iter__(self) -> Iterator[Value]:
        return (Condition(self.tracing, value.place, self.inverted) for value in super().__iter__())

    def __invert__(self) -> Condition:
        return Condition(self.tracing, self.place, inverted=not self.inverted)

    @property
    def number(self) -> Value:
        """1 where it holds, else 0."""
        return self.tracing.apply("where", self, 1.0, 0.0)


def _values(arguments: Iterable[Any]) -> Iterator[Value]:
    """The values in arguments and in lists of them."""
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _values(argument)


def _instead(name: str) -> str:
    """What a step may write in place of a function of torch."""
    instead = (NO_METHODS | INSTEAD).get(name)
    return f"write {instead} instead" if instead else ALLOWED


# Functions and methods of torch

_MOST_FACTORS = 8
"""The largest exponent of a power, which becomes a product."""


def _do(op: str, *operands: Any) -> Any:
    """An operation unit by unit, of at least one value."""
    return next(_values(operands)).tracing.apply(op, *operands)


def _of_vectors(op: str, v: Value, other: Any) -> Value:
    """An operation for which torch takes no number."""
    if not isinstance(other, Value):
        v.tracing.fail(f"torch's {op} of a vector and {other!r:.40}; allowed: two vectors, or {op} of charlm.cells")
    return _do(op[:3], v, other)


def _power(v: Value, exponent: Any) -> Any:
    allowed = (0.5, *range(1, _MOST_FACTORS + 1))
    if not isinstance(exponent, int | float) or abs(exponent) not in allowed:
        exponent_text = exponent if isinstance(exponent, int | float) else f"a {type(exponent).__name__}"
        v.tracing.fail(
            f"found {exponent_text} as an exponent; allowed: ±0.5, ±1, …, ±{_MOST_FACTORS}; or use exp(b * log(v))"
        )
    factors = [_do("sqrt", v)] if abs(exponent) == 0.5 else [v] * int(abs(exponent))
    power = functools.reduce(operator.mul, factors)
    return power if exponent > 0 else 1 / power


def _clamp(v: Value, min: Any = None, max: Any = None) -> Value:
    if len({isinstance(bound, Value) for bound in (min, max) if bound is not None}) != 1:
        v.tracing.fail("clamp with no bound, or with a number and a vector; allowed: numbers, or vectors")
    v = v if min is None else _do("max", v, min)
    return v if max is None else _do("min", v, max)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{operation.torch or op: functools.partial(_do, op) for op, operation in OPERATIONS.items()},
    **{op: functools.partial(_of_vectors, op) for op in ("maximum", "minimum")},
    **{"max": functools.partial(_of_vectors, "maximum"), "min": functools.partial(_of_vectors, "minimum")},
    **{"neg": operator.neg, "abs": abs, "pow": _power, "clamp": _clamp},
    "log_sigmoid": lambda v: -_do("softplus", -v),
    "silu": lambda v: v * _do("sigmoid", v),
    "detach": lambda v: v.tracing.over_units("stop", v),
}
"""The functions of torch that a step may call, by their names. Most are methods of tensors, too."""

NO_METHODS = {"log_sigmoid": "log_sigmoid(v)", "softplus": "softplus(v)", "silu": "torch.nn.functional.silu(v)"}
"""Functions that tensors do not have as methods, and what a step writes for them."""

INSTEAD = {
    **dict.fromkeys(("linear", "matmul", "mm", "addmm", "bmm", "einsum"), "p.product(name, v)"),
    **dict.fromkeys(("T", "t", "transpose"), "p.transposed(name, v)"),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack"), "a product of each vector, and their sum"),
    **dict.fromkeys(("chunk", "split", "unbind", "unflatten", "view", "reshape"), "i, f = p.product(name, v, 2)"),
    **{"layer_norm": "normalize(v), or p.layer_norm(v, name)", "rms_norm": "rms_normalize(v)"},
    **{"lerp": "a + w * (b - a)", "square": "v * v", "rsqrt": "1 / sqrt(v)", "reciprocal": "1 / v"},
    **dict.fromkeys(("elu", "leaky_relu"), "where(v > 0, v, …)"),
    **dict.fromkeys(("logical_and", "logical_or", "logical_not"), "&, | or ~"),
    **dict.fromkeys(("dropout", "bernoulli", "rand_like", "randn_like"), "the dropout and zoneout of the layers"),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like"), "a number"),
    **dict.fromkeys(("shape", "size", "dim", "ndim", "numel"), "self.hidden or another option"),
    **dict.fromkeys(
        ("mean", "sum", "prod", "var", "std", "norm", "amax", "amin", "argmax", "softmax", "logsumexp", "cumsum"),
        "p.product(name, v, start=1.0, fixed=True), which sums over units, or normalize(v) or rms_normalize(v)",
    ),
}
"""What a step writes instead of functions that need more than one unit, or that do not belong into a step."""
