"""What printed equations compute, in numpy: the text becomes Python, with `W v` and `2 v` as powers."""

import ast
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from charlm.cells.equations import Lines, derivative, equations
from charlm.cells.program import EPSILON
from charlm.layers import RecurrentLayers
from tests.cells.measure import random_input, random_state

_IN_PYTHON = {
    **{",ₜ": "ₜ", "ₜ₋₁": "_before", "ₜ": "_after", "′": "_back", "²": ".square", "ᵀ": ".T", "−": "-", "⊙": "*"},
    **{"√": "sqrt", "max(": "maximum(", "min(": "minimum(", " where ": " if ", ", else ": " else "},
    **{low: f"_{digit}" for digit, low in enumerate("₀₁₂₃₄₅₆₇₈₉")},
}


def in_python(text: str) -> str:
    text = re.sub(r"(\w)\*", r"\1_again", text)
    for written, python in _IN_PYTHON.items():
        text = text.replace(written, python)
    text = re.sub(r"\[(\d+)\]", r".at(\1)", text)
    return re.sub(r"(?<=[\w)])(?<!\bif)(?<!\belse) (?=[^\W]|\()(?!if |else )", " ** ", text)


class Vectors(np.ndarray):
    """[gates, B, units]; of a parameter [gates, 1, units]."""

    def at(self, k: int) -> "Vectors":
        return self[k - 1 : k]

    @property
    def square(self) -> Any:
        return self * self

    def __rpow__(self, number: float) -> Any:
        return number * self


class Rows(dict[int, Any]):
    """Vectors or parameters by their numbers."""

    def at(self, k: int) -> Any:
        return self[k]


class Matrix:
    """One or more matrices [units, columns], the gates of a product."""

    def __init__(self, gates: npt.NDArray[np.float64], is_transposed: bool = False) -> None:
        self.gates, self.is_transposed = gates, is_transposed

    @property
    def T(self) -> "Matrix":
        return Matrix(self.gates, is_transposed=True)

    def __pow__(self, v: Any) -> Any:
        if not self.is_transposed:
            return vectors(np.stack([v[0] @ gate.T for gate in self.gates]))
        if isinstance(v, Rows):
            rows = [v[k] for k in sorted(v)]
        else:
            rows = [*v] if isinstance(v, tuple) else [*v[:, None]] if np.ndim(v) else [v]
        total = sum(row[0] @ gate for row, gate in zip(rows, self.gates, strict=True) if np.ndim(row))
        return vectors(np.asarray(total)[None])


def vectors(array: Any) -> Vectors:
    return np.asarray(array, dtype=np.float64).view(Vectors)


def _normalize(v: Any, epsilon: float = EPSILON) -> Any:
    return _rms_normalize(v - v.mean(-1, keepdims=True), epsilon)


def _rms_normalize(v: Any, epsilon: float = EPSILON) -> Any:
    return v / np.sqrt((v * v).mean(-1, keepdims=True) + epsilon)


def _rms_normalize_back(v: Any, d: Any, epsilon: float = EPSILON) -> Any:
    n = _rms_normalize(v, epsilon)
    return (d - n * (n * d).mean(-1, keepdims=True)) / np.sqrt((v * v).mean(-1, keepdims=True) + epsilon)


def _normalize_back(v: Any, d: Any, epsilon: float = EPSILON) -> Any:
    return _rms_normalize_back(v - v.mean(-1, keepdims=True), d - d.mean(-1, keepdims=True), epsilon)


_FUNCTIONS = {
    **{name: getattr(np, name) for name in ("exp", "log", "tanh", "maximum", "minimum")},
    "where": lambda condition, a, b: np.where(condition, a, b).view(Vectors),
    "σ": lambda v: 1 / (1 + np.exp(-v)),
    "softplus": lambda v: np.logaddexp(0, v),
    "relu": lambda v: np.maximum(v, 0),
    "sqrt": lambda v: np.sqrt(v) if isinstance(v, Vectors) else math.sqrt(v),
    "stop_gradient": lambda v: v,
    **{"normalize": _normalize, "normalize_back": _normalize_back},
    **{"rms_normalize": _rms_normalize, "rms_normalize_back": _rms_normalize_back},
}


class _Choices(ast.NodeTransformer):
    """`a if c else b` for each number of an array."""

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
        name, tensor = symbols[one.name,], layers.get_parameter(f"{one.name}_l0").detach().numpy()
        stack = tensor if one.stack else tensor[None]
        items = [np.stack(np.split(item, one.gates)) for item in stack]
        values = [vectors(item[:, None]) if one.columns == "" else Matrix(item) for item in items]
        if one.stack and one.columns == "" and one.gates == 1:
            found[name] = vectors(np.concatenate(values))
        else:
            found[name] = Rows(enumerate(values, 1)) if one.stack else values[0]
    return found


def assert_lines_are_the_step(layers: RecurrentLayers) -> None:
    """What is printed gives the numbers of the reference loop, and the gradients of the input, states and vectors."""
    program = layers.program(0)
    x = random_input(layers, 1, 3).requires_grad_()
    state = tuple(tensor.requires_grad_() for tensor in random_state(layers, 3))
    _, last = layers.forward_reference(x, state)
    upstream = [torch.randn_like(tensor) for tensor in last]
    layers.zero_grad()
    sum((tensor * d).sum() for tensor, d in zip(last, upstream, strict=True)).backward()

    given, expected = {"xₜ": x}, {"dx_after": _gradient(x)}
    for name, before, after, d in zip(program.states, state, last, upstream, strict=True):
        given |= {f"{name}ₜ₋₁": before, f"d{name}ₜ": d}
        expected |= {f"{name}_after": after.detach(), f"d{name}_before": _gradient(before)}
    own = parameters(layers)
    values = own | {name: vectors(tensor.detach().numpy()) for name, tensor in given.items()}
    found = evaluate([*equations(program), *derivative(program)], values)
    for name, parameter in zip(own, program.parameters, strict=True):
        if f"d{name}" in found:  # a vector's, for each stream
            of_rows = found[f"d{name}"]
            rows = [of_rows[k] for k in sorted(of_rows)] if isinstance(of_rows, Rows) else [of_rows]
            found[f"d{name}"] = torch.cat([torch.as_tensor(row).sum(1).flatten() for row in rows])
            expected[f"d{name}"] = _gradient(layers.get_parameter(f"{parameter.name}_l0")).flatten()
    for name, tensor in expected.items():
        value = torch.as_tensor(found.get(name, 0.0), dtype=torch.float64).expand_as(tensor)
        torch.testing.assert_close(value, tensor, rtol=1e-11, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
