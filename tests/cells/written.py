"""What printed equations compute: the text becomes Python, with `W v` and `2 v` as powers."""

import ast
import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.functional import vjp
from torch.nn import functional as F

from charlm.cells.equations import Lines, derivative, equations
from charlm.cells.program import EPSILON
from charlm.layers import RecurrentLayers
from tests.cells.measure import random_input, random_state

_IN_PYTHON = {
    **{",ₜ": "ₜ", "ₜ₋₁": "_before", "ₜ": "_after", "′": "_back", "²": ".squared", "ᵀ": ".T", "−": "-", "⊙": "*"},
    **{"√": "sqrt", "max(": "maximum(", "min(": "minimum(", " where ": " if ", ", else ": " else "},
    **{low: f"_{digit}" for digit, low in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}


def in_python(text: str) -> str:
    text = re.sub(r"(\w)\*", r"\1_again", text)
    for written, python in _IN_PYTHON.items():
        text = text.replace(written, python)
    text = re.sub(r"\[(\d+)\]", r".at(\1)", text)
    return re.sub(r"(?<=[\w)])(?<!\bif)(?<!\belse) (?=[^\W]|\()(?!if |else )", " ** ", text)


class Vectors(Tensor):
    """[gates, B, units]; of a parameter [gates, 1, units]."""

    def at(self, k: int) -> Any:
        return self[k - 1 : k]

    @property
    def squared(self) -> Any:
        return self * self

    def __rpow__(self, number: Any) -> Any:
        return number * self


class Rows(dict[int, Any]):
    """Vectors or parameters by their numbers."""

    def at(self, k: int) -> Any:
        return self[k]

    def stacked(self) -> Tensor:
        return torch.cat([self[k].expand(1, *self[1].shape[1:]) for k in sorted(self)])


class Matrix:
    """The gates of a product [gates, units, columns]."""

    def __init__(self, gates: Tensor, is_transposed: bool = False) -> None:
        self.gates, self.is_transposed = gates, is_transposed

    @property
    def T(self) -> "Matrix":
        return Matrix(self.gates, is_transposed=True)

    def __pow__(self, v: Any) -> Any:
        if not self.is_transposed:
            return vectors(v @ self.gates.mT)
        rows = v.stacked() if isinstance(v, Rows) else v if isinstance(v, tuple | Tensor) else (v,)
        pairs = [(row, gate) for row, gate in zip(rows, self.gates, strict=True) if isinstance(row, Tensor)]
        return vectors(sum((row @ gate).reshape(1, -1, gate.shape[1]) for row, gate in pairs))


def vectors(tensor: Any) -> Any:
    return torch.as_tensor(tensor, dtype=torch.float64).as_subclass(Vectors)


def _normalize(v: Any, epsilon: float = EPSILON) -> Any:
    return F.layer_norm(v, v.shape[-1:], eps=epsilon)


def _rms_normalize(v: Any, epsilon: float = EPSILON) -> Any:
    return F.rms_norm(v, v.shape[-1:], eps=epsilon)


def _back(function: Any, v: Any, d: Any, epsilon: float = EPSILON) -> Any:
    """The gradient of v from d, that of the function's value."""
    return vjp(lambda v: function(v, epsilon), *torch.broadcast_tensors(v, d))[1]


def _with_numbers(function: Any) -> Any:
    """The function, of numbers too."""
    return lambda *values: function(*(torch.as_tensor(value, dtype=torch.float64) for value in values))


_NAMES = {"exp": "exp", "log": "log", "tanh": "tanh", "sqrt": "sqrt", "maximum": "maximum", "minimum": "minimum"}
_FUNCTIONS = {
    **{name: _with_numbers(getattr(torch, torchs)) for name, torchs in _NAMES.items()},
    **{"σ": torch.sigmoid, "softplus": F.softplus, "relu": torch.relu, "where": torch.where},
    "stop_gradient": lambda v: v,
    **{"normalize": _normalize, "normalize_back": functools.partial(_back, _normalize)},
    **{"rms_normalize": _rms_normalize, "rms_normalize_back": functools.partial(_back, _rms_normalize)},
}


class _Choices(ast.NodeTransformer):
    """`a if c else b` for each number of a tensor."""

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        return ast.Call(ast.Name("where", ast.Load()), [node.test, node.body, node.orelse], [])


def evaluate(lines: Iterable[str], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values by name, and those of the lines, whose names are those of `in_python`."""
    names = {in_python(name): value for name, value in values.items()}
    for line in lines:
        name, text = (in_python(part) for part in line.split(" = "))
        tree = ast.fix_missing_locations(_Choices().visit(ast.parse(text, mode="eval")))
        value = eval(compile(tree, line, "eval"), dict(_FUNCTIONS), names)
        if row := re.fullmatch(r"(\w+)\.at\((\d+)\)", name):
            names.setdefault(row[1], Rows())[int(row[2])] = value
        else:
            names[name] = value
    return names


def parameters(layers: RecurrentLayers) -> dict[str, Any]:
    """The first layer's parameters by their printed names, in the program's order."""
    found: dict[str, Any] = {}
    program = layers.program(0)
    symbols = Lines(program).symbols
    for one in program.parameters:
        tensor = layers.get_parameter(f"{one.name}_l0").detach()
        items = [item.unflatten(0, (one.gates, -1)) for item in (tensor if one.stack else tensor[None])]
        values: list[Any] = [vectors(item[:, None]) if one.columns == "" else Matrix(item) for item in items]
        if one.columns == "" and one.gates == 1:
            found[symbols[one.name,]] = vectors(torch.cat(values))
        else:
            found[symbols[one.name,]] = Rows(enumerate(values, 1)) if one.stack else values[0]
    return found


def assert_lines_are_the_step(layers: RecurrentLayers) -> None:
    """What is printed gives the numbers of the reference loop, and the gradients of the input, states and vectors."""
    program = layers.program(0)
    x = random_input(layers, 1, 3).requires_grad_()
    state = tuple(tensor.requires_grad_() for tensor in random_state(layers, 3))
    _, last = layers.forward_reference(x, state)
    upstream = [torch.randn_like(tensor) for tensor in last]
    layers.zero_grad()
    torch.stack([(tensor * d).sum() for tensor, d in zip(last, upstream, strict=True)]).sum().backward()

    given, expected = {"xₜ": x}, {"dx_after": _gradient(x)}
    for name, before, after, d in zip(program.states, state, last, upstream, strict=True):
        given |= {f"{name}ₜ₋₁": before, f"d{name}ₜ": d}
        expected |= {f"{name}_after": after.detach(), f"d{name}_before": _gradient(before)}
    own = parameters(layers)
    values = own | {name: vectors(tensor.detach()) for name, tensor in given.items()}
    found = evaluate([*equations(program), *derivative(program)], values)
    for name, parameter in zip(own, program.parameters, strict=True):
        if f"d{name}" in found:  # a vector's, for each stream
            rows = found[f"d{name}"]
            found[f"d{name}"] = (rows.stacked() if isinstance(rows, Rows) else rows).sum(1).flatten()
            expected[f"d{name}"] = _gradient(layers.get_parameter(f"{parameter.name}_l0")).flatten()
    for name, tensor in expected.items():
        value = torch.as_tensor(found.get(name, 0.0), dtype=torch.float64).expand_as(tensor)
        torch.testing.assert_close(value, tensor, rtol=1e-11, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
