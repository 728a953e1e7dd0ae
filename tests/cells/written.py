"""What printed equations compute: the text becomes Python, with `W v` and `2 v` as powers."""

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells.equations import Lines, equations
from charlm.cells.program import EPSILON
from charlm.layers import RecurrentLayers
from tests.cells.measure import random_input, random_state

_IN_PYTHON = {
    **{",ₜ": "ₜ", "ₜ₋₁": "_before", "ₜ": "_after", "²": ".squared", "−": "-", "⊙": "*"},
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


class Matrix:
    """The gates of a product [gates, units, columns]."""

    def __init__(self, gates: Tensor) -> None:
        self.gates = gates

    def __pow__(self, v: Any) -> Any:
        return vectors(v @ self.gates.mT)


def vectors(tensor: Any) -> Any:
    return torch.as_tensor(tensor, dtype=torch.float64).as_subclass(Vectors)


def _with_numbers(function: Any) -> Any:
    """The function, of numbers too."""
    return lambda *values: function(*(torch.as_tensor(value, dtype=torch.float64) for value in values))


_NAMES = {"exp": "exp", "log": "log", "tanh": "tanh", "sqrt": "sqrt", "maximum": "maximum", "minimum": "minimum"}
_FUNCTIONS = {
    **{name: _with_numbers(getattr(torch, torchs)) for name, torchs in _NAMES.items()},
    **{"σ": torch.sigmoid, "softplus": F.softplus, "relu": torch.relu, "where": torch.where},
    "stop_gradient": lambda v: v,
    "normalize": lambda v, epsilon=EPSILON: F.layer_norm(v, v.shape[-1:], eps=epsilon),
    "rms_normalize": lambda v, epsilon=EPSILON: F.rms_norm(v, v.shape[-1:], eps=epsilon),
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
    """What is printed gives the states of the reference loop."""
    program = layers.program(0)
    x, state = random_input(layers, 1, 3), random_state(layers, 3)
    with torch.no_grad():
        _, last = layers.forward_reference(x, state)
    befores = {f"{name}ₜ₋₁": vectors(tensor) for name, tensor in zip(program.states, state, strict=True)}
    found = evaluate(equations(program), parameters(layers) | {"xₜ": vectors(x)} | befores)
    for name, tensor in zip(program.states, last, strict=True):
        value = torch.as_tensor(found[f"{name}_after"], dtype=torch.float64).expand_as(tensor)
        torch.testing.assert_close(value, tensor, rtol=1e-11, atol=1e-11)
