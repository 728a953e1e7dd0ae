"""What a step becomes: its program, the program in single vectors and the printed equations all give its numbers."""

import ast
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from charlm.cells import LSTM, Cell
from charlm.cells.equations import Lines, derivative, equations, notes
from charlm.cells.program import EPSILON, scalarized
from charlm.layers import RecurrentLayers
from tests.cells.forged import assert_every_path, forged
from tests.cells.measure import CASES, Case, assert_equal_runs, by_program, by_step, random_input, random_state, run
from tests.cells.programs import cells
from tests.export.odd import Odd

# What printed equations compute: the text becomes Python, with `W v` and `2 v` as powers.

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


_FUNCTIONS = {
    **{name: _with_numbers(getattr(torch, name)) for name in ("exp", "log", "tanh", "sqrt", "maximum", "minimum")},
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


def assert_forms_are_the_step(layers: RecurrentLayers) -> None:
    """The reference loop, the programs and the printed equations give the numbers of the step."""
    x, state = random_input(layers, 3, 2), random_state(layers, 2)
    expected, program = run(by_step(layers), layers, x, state), layers.program(0)
    for forward in (layers.forward_reference, by_program(layers, program), by_program(layers, scalarized(program))):
        assert_equal_runs(run(forward, layers, x, state), expected, tolerance=1e-10)
    assert_lines_are_the_step(layers)


@pytest.mark.parametrize("inputs", [3, 4], ids=["I ≠ H", "I = H"])
@pytest.mark.parametrize("case", [*CASES, Case("sru", {"normalize": False})], ids=str)
def test_every_form_of_a_kind_gives_the_numbers_of_its_step(case: Case, inputs: int) -> None:
    assert_forms_are_the_step(case.build(inputs, 4))


@settings(max_examples=30, deadline=None)
@given(st.one_of(cells(), st.just(Odd(hidden=4))), st.sampled_from([3, 4]))
def test_every_form_of_any_cell_gives_the_numbers_of_its_step(cell: Cell, inputs: int) -> None:
    torch.manual_seed(0)
    assert_forms_are_the_step(RecurrentLayers(cell, inputs).double())


def test_a_forged_program_that_passes_the_check_goes_every_path() -> None:
    for seed in range(20):
        program, square = forged(seed)
        try:
            assert_every_path(program, square)
        except Exception as error:
            raise AssertionError(f"program {seed}: {program}") from error


# The printed equations


def test_equations_read_like_those_of_a_paper() -> None:
    """Every operation, as people write it."""
    assert equations(Odd().program(square=False)) == [
        "a = plain xₜ ⊙ plain_gain + turn rms_normalize(2 σ(q yₜ₋₁ + q_bias) ⊙ xₜ, 0.001) + turn_bias",
        "e = normalize(a) ⊙ y* + back[2] yₜ₋₁",
        "k = e[1] − 0.1 e[2]",
        "leaky = (k where k > 0, else rate ⊙ k) + (1 where e[2] > rows[2][1], else 0) ⊙ (e[2] − rows[2][1])",
        "decay = 1 / (1 + softplus(e[2]) + exp(min(e[1], 1)))",
        "m = decay ⊙ logitsₜ₋₁ + (1 − decay) ⊙ min(leaky, 3)",
        "new_yₜ = stop_gradient(0.9 new_yₜ₋₁ + √(1 + relu(widen (tanh(narrow max(e[1], −0.5)) + constructor))))",
        "u = back[1] m",
        "yₜ = tanh(m / max(new_yₜ, rate)) − 0.1 u[2]",
        "logitsₜ = −m",
    ]


def test_the_derivative_reads_like_the_equations() -> None:
    lines = derivative(LSTM(layer_norm=True).program(square=False))
    assert "dhₜ₋₁ = W_hhᵀ da" in lines
    assert "δ₁ = dhₜ ⊙ o ⊙ (1 − k²)" in lines  # of a sum, whose bias has the same
    assert "dw_ln_gates[1] = de[1] ⊙ normalize(a[1])" in lines
    assert "da[1] = normalize′(a[1], de[1] ⊙ w_ln_gates[1])" in lines
    assert [line.split("(")[0] for line in notes(lines)] == ["normalize", "normalize′"]
