"""What printed equations compute, in numpy: the text becomes Python, with `W v` and `2 v` as powers."""

import ast
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.cells.equations import Lines
from charlm.cells.program import EPSILON, Program

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


def parameters(program: Program, tensors: Mapping[str, npt.NDArray[np.float64]]) -> dict[str, Any]:
    """The parameters by their printed names."""
    found: dict[str, Any] = {}
    symbols = Lines(program).symbols
    for one in program.parameters:
        name = symbols[one.name,]
        stack = tensors[one.name] if one.stack else tensors[one.name][None]
        items = [np.stack(np.split(item, one.gates)) for item in stack]
        values = [vectors(item[:, None]) if one.columns == "" else Matrix(item) for item in items]
        if one.stack and one.columns == "" and one.gates == 1:
            found[name] = vectors(np.concatenate(values))
        else:
            found[name] = Rows(enumerate(values, 1)) if one.stack else values[0]
    return found
