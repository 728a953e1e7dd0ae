"""What a step becomes: its program and the program in single vectors give its numbers; equations for people."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import charlm.cells
from charlm.cells import GRU, LSTM, Cell
from charlm.cells.equations import derivative, equations, notes
from charlm.cells.program import scalarized
from charlm.layers import RecurrentLayers
from charlm.native.kernels import kernel_of
from tests.cells.measure import CASES, Case, assert_equal_runs, by_program, by_step, random_input, random_state, run
from tests.cells.programs import cells
from tests.export.odd import Odd


def assert_forms_are_the_step(layers: RecurrentLayers) -> None:
    """The reference loop and the programs give the numbers of the step; people can read it, and its derivative."""
    x, state = random_input(layers, 3, 2), random_state(layers, 2)
    expected, program = run(by_step(layers), layers, x, state), layers.forms[0].program
    for forward in (layers.forward_reference, by_program(layers, program), by_program(layers, scalarized(program))):
        assert_equal_runs(run(forward, layers, x, state), expected, tolerance=1e-10)
    assert all(" = " in line for line in (*equations(program), *derivative(program)))


@pytest.mark.parametrize("inputs", [3, 4], ids=["I ≠ H", "I = H"])
@pytest.mark.parametrize("case", [*CASES, Case("sru", {"normalize": False})], ids=str)
def test_every_form_of_a_kind_gives_the_numbers_of_its_step(case, inputs):
    assert_forms_are_the_step(case.build(inputs, 4))


@settings(max_examples=30, deadline=None)
@given(st.one_of(cells(), st.just(Odd(hidden=4))), st.sampled_from([3, 4]))
def test_every_form_of_any_cell_gives_the_numbers_of_its_step(cell, inputs):
    torch.manual_seed(0)
    assert_forms_are_the_step(RecurrentLayers(cell, inputs).double())


def test_the_kernel_of_a_gru():
    """`gru.cpp` says where each line comes from."""
    expected = (Path(__file__).parent / "gru.cpp").read_text(encoding="utf-8")
    found = kernel_of(GRU()).text
    assert without_comments(found) == without_comments(expected)


def without_comments(text: str) -> list[str]:
    return [line for line in re.sub(r" *//.*", "", text).splitlines() if line]


# The printed equations


def test_equations_read_like_those_of_a_paper():
    """Every operation, as people write it."""
    assert equations(Odd().program(square=False)) == [
        "a = plain xₜ ⊙ plain_gain + turn rms_normalize(2 σ(q yₜ₋₁ + q_bias) ⊙ xₜ, 0.001) + turn_bias",
        "e = normalize(a) ⊙ y* + back[2] yₜ₋₁",
        "k = e[1] − 0.1 e[2]",
        "leaky = (k where k > 0, else rate ⊙ k) + (1 where e[2] > rows[2][1], else 0) ⊙ (e[2] − rows[2][1])",
        "decay = 1 / (1 + softplus(e[2]) + exp(min(e[1], 1)))",
        "m = decay ⊙ logitsₜ₋₁ + (1 − decay) ⊙ min(leaky, 3)",
        "new_yₜ = stop_gradient(0.9 new_yₜ₋₁ + √(1 + relu(narrowᵀ (tanh(narrow max(e[1], −0.5)) + constructor))))",
        "u = back[1] m",
        "yₜ = tanh(m / max(new_yₜ, rate)) − 0.1 u[2]",
        "logitsₜ = −m",
    ]


class Written(Cell):
    """A cell whose step is an expression."""

    text: str

    def step(self, p: Any, x: Any, h: Any) -> Any:
        names = {**vars(charlm.cells), "p": p, "h": h, "b": p.vector("b"), "W": lambda v: p.product("W", v)}
        return eval(self.text, names)


PARENTHESES = {
    "h - (b - h)": "h − (b − h)",
    "h - (b + h)": "h − (b + h)",
    "h + (b + h)": "h + b + h",
    "h / b / h": "h / b / h",
    "h / (b / h)": "h / (b / h)",
    "h * (b / h)": "h ⊙ (b / h)",
    "(h + b) * (h - b)": "(h + b) ⊙ (h − b)",
    "h - -(h + b)": "h + h + b",
    "-(h + b) * b": "(−(h + b)) ⊙ b",
    "(-h) ** 2 + (h * b) ** 2": "(−h)² + (h ⊙ b)²",
    "W(h + W(h * b))": "W (h + W (h ⊙ b))",
    "2 * W(h) * b - 1": "2 W h ⊙ b − 1",
    "h - where(h + b > h * b, b - 1, -b)": "h − (b − 1 where h + b > h ⊙ b, else −b)",
    "where(h > b, where(b > 1, h, b), h)": "((h where b > 1, else b) where h > b, else h)",
}


@pytest.mark.parametrize("text", PARENTHESES)
def test_an_equation_means_what_its_expression_does(text):
    [line] = equations(Written(text=text).program(square=False))
    assert line.replace("ₜ₋₁", "") == f"hₜ = {PARENTHESES[text]}"


def test_the_derivative_reads_like_the_equations():
    lines = derivative(LSTM(layer_norm=True).program(square=False))
    assert "dhₜ₋₁ = W_hhᵀ da" in lines
    assert "db_ln_cell = dhₜ ⊙ o ⊙ (1 − k²)" in lines
    assert "dw_ln_gates[1] = de[1] ⊙ normalize(a[1])" in lines
    assert "da[1] = normalize′(a[1], de[1] ⊙ w_ln_gates[1])" in lines
    assert [line.split("(")[0] for line in notes(lines)] == ["normalize", "normalize′"]


VECTORS = {
    "sigmoid(h + p.vector('v'))": "dv = dhₜ₋₁",
    "h * exp(2 + p.vector('v'))": "dv = dhₜ ⊙ hₜ₋₁ ⊙ a",
    "h * sigmoid(p.vector('u') + p.vector('v'))": "dv = du",
    "h + p.vector('v')": "dv = dhₜ",
    "W(h) + p.vector('v')": "",  # a bias: the line would be that of the product
    "h * p.vector('v', fixed=True)": "",
}


@pytest.mark.parametrize("text", VECTORS)
def test_the_derivative_has_a_line_for_each_vector_but_biases_and_fixed_ones(text):
    lines = derivative(Written(text=text).program(square=False))
    assert "".join(line for line in lines if line.startswith("dv")) == VECTORS[text]
