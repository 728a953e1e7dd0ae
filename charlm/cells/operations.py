"""The operations of a program on vectors, unit by unit: each is declared once, with its derivative and its notations.

To add one: an entry of `OPERATIONS`, its value in on_tensors.py, and a function in step.py that a step calls. What C++
or Triton lacks goes into charlm/native/vector.h or charlm/gpu/functions.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

ATOM = 5
"""The precedence of a name or a call in equations; no operation has a higher one."""


def _method(op: str) -> "Callable[[Formula, Formula | float], Formula]":
    return lambda one, other: Formula(op, (one, other))


@dataclass(frozen=True)
class Formula:
    """A formula of a derivative: an operation on formulas and numbers, or a letter."""

    op: str
    args: "tuple[Formula | float, ...]" = ()

    __sub__, __mul__, __truediv__, __gt__ = map(_method, ("sub", "mul", "div", "greater"))

    def __rsub__(self, other: float) -> "Formula":
        return Formula("sub", (other, self))


def _where(condition: Formula, a: Formula | float, b: Formula | float) -> Formula:
    return Formula("where", (condition, a, b))


def _in_forward(formula: Formula) -> Formula:
    """A formula of the arguments that the forward pass computes."""
    return Formula("in_forward", (formula,))


_A, _B = Formula("a"), Formula("b")
"""The arguments of an operation."""
_Y, _D = Formula("y"), Formula("d")
"""Its value, and the gradient of this value."""


class Operation(NamedTuple):
    """An operation unit by unit. A notation has {0}, {1}, {2} for the arguments; "" stands for a call of its name."""

    gradients: tuple[Formula | None, ...]
    """What the gradient of each argument gets; None: nothing."""
    javascript: str
    cpp: str = ""
    triton: str = ""
    torch: str = ""
    """torch's name of the function."""
    onnx: str = ""
    """The operator; "": the name with a capital."""
    text: str = ""
    """In equations."""
    precedence: tuple[int, ...] = ()
    """In equations: its own, and what each argument needs to stand without parentheses; (): none."""

    @property
    def arity(self) -> int:
        return len(self.gradients)


def _infix(sign: str, gradients: tuple[Formula, ...], **equations: Any) -> Operation:
    """An operation that all programming languages write alike."""
    code = f"{{0}} {sign} {{1}}"
    return Operation(gradients, code, code, code, **equations)


def _extreme(name: str, first_wins: Formula, second_wins: Formula) -> Operation:
    """A maximum or minimum. If both arguments are equal, each gets half of the gradient."""
    share = _in_forward(_where(first_wins, 1.0, _where(second_wins, 0.0, 0.5)))
    call = f"{name}({{0}}, {{1}})"
    javascript = f"Math.{name[:3]}({{0}}, {{1}})"
    return Operation((_D * share, _D - _D * share), javascript, call, call, torch=name)


OPERATIONS: dict[str, Operation] = {
    "exp": Operation((_D * _Y,), "Math.exp({0})"),
    "log": Operation((_D / _A,), "Math.log({0})"),
    # In JavaScript faster than Math.tanh; it errs by 1e-16 at most.
    "tanh": Operation((_D * (1.0 - _Y * _Y),), "2 / (1 + Math.exp(-2 * {0})) - 1"),
    "sigmoid": Operation((_D * _Y * (1.0 - _Y),), "1 / (1 + Math.exp(-{0}))", text="σ({0})"),
    "softplus": Operation(
        gradients=(_D * _in_forward(Formula("sigmoid", (_A,))),),
        javascript="Math.max({0}, 0) + Math.log1p(Math.exp(-Math.abs({0})))",
    ),
    "relu": Operation((_where(_Y > 0.0, _D, 0.0),), "Math.max({0}, 0)"),
    "sqrt": Operation((_D * 0.5 / _Y,), "Math.sqrt({0})", "square_root({0})", text="√({0})"),
    "add": _infix("+", (_D, _D), text="{0} + {1}", precedence=(2, 2, 3)),
    "sub": _infix("-", (_D, 0.0 - _D), text="{0} − {1}", precedence=(2, 2, 3)),
    "mul": _infix("*", (_D * _B, _D * _A), text="{0} ⊙ {1}", precedence=(3, 3, 4)),
    "div": _infix("/", (_D / _B, 0.0 - _D / _B * _Y), text="{0} / {1}", precedence=(3, 3, 4)),
    "max": _extreme("maximum", _A > _B, _B > _A),
    "min": _extreme("minimum", _B > _A, _A > _B),
    "greater": Operation(
        gradients=(None, None),
        javascript="{0} > {1} ? 1 : 0",
        cpp="{0} > {1}",
        triton="{0} > {1}",
        torch="gt",
        text="{0} > {1}",
        precedence=(1, 2, 2),
    ),
    "where": Operation(
        gradients=(None, _where(_A, _D, 0.0), _where(_A, 0.0, _D)),
        javascript="{0} ? {1} : {2}",
        cpp="{0} ? {1} : {2}",
        triton="tl.where({0}, {1}, {2})",
        text="({1} where {0}, else {2})",
    ),
    "stop": Operation(
        gradients=(None,),
        javascript="{0}",
        cpp="{0}",
        triton="{0}",
        torch="detach",
        onnx="Identity",
        text="stop_gradient({0})",
    ),
}

UNARY = tuple(op for op, operation in OPERATIONS.items() if operation.arity == 1 and op != "stop")
LEAVES = ("input", "state", "constant", "vector")
OVER_UNITS = ("product", "part", "normalize")
"""What a program has besides `OPERATIONS`, see `Node`: values of no arguments, and of one."""


def in_code(target: str, op: str, *args: str) -> str:
    """An operation on these arguments in "cpp", "triton" or "javascript"."""
    notation = getattr(OPERATIONS[op], target)
    return notation.format(*args) if notation else f"{op}({', '.join(args)})"
