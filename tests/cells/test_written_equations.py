"""The equations of a program for people: `charlm.cells.equations`."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.cells import CELLS, GRU, LSTM, RHN, RNN, SLSTM, Cell, MinGRU, sigmoid
from charlm.cells.equations import derivative, equations, latex
from charlm.cells.trace import trace
from tests.cells.programs import cells
from tests.export.odd import Odd


class Leaky(Cell):
    kind: Any = "leaky"

    def step(self, p: Any, x: Any, h: Any) -> Any:
        return h + sigmoid(p.vector("leak")) * (p.product("w", x) - h)


# The last lines of the equations.
EQUATIONS: list[tuple[Cell, list[str]]] = [
    (
        LSTM(),
        [
            "a = W_ih xₜ + b_ih + b_hh + W_hh hₜ₋₁",
            "i = σ(a₁)",
            "f = σ(a₂)",
            "g = tanh(a₃)",
            "o = σ(a₄)",
            "cₜ = f ⊙ cₜ₋₁ + i ⊙ g",
            "hₜ = o ⊙ tanh(cₜ)",
        ],
    ),
    (LSTM(layer_norm=True), ["hₜ = o ⊙ tanh(normalize(cₜ) ⊙ w_ln_cell + b_ln_cell)"]),
    # Stacks of matrices
    (
        RHN(depth=2),
        [
            "a = W_ih xₜ + b_hh[1] + W_hh[1] sₜ₋₁",
            "g₁ = σ(a₂)",
            "s₁ = sₜ₋₁ + g₁ ⊙ (tanh(a₁) − sₜ₋₁)",
            "e = b_hh[2] + W_hh[2] s₁",
            "g₂ = σ(e₂)",
            "sₜ = s₁ + g₂ ⊙ (tanh(e₁) − s₁)",
        ],
    ),
    # What is named like a state gets another name.
    (SLSTM(), ["nₜ = l ⊙ nₜ₋₁ + k", "o = σ(a₄)", "p = cₜ / nₜ", "hₜ = o ⊙ p"]),
    # Every operation
    (
        Odd(),
        [
            "a = plain xₜ ⊙ plain_gain + turn rms_normalize(2 σ(q yₜ₋₁ + q_bias) ⊙ xₜ) + turn_bias",
            "e = normalize(a) ⊙ y* + back[2] yₜ₋₁",
            "k = e₁ − 0.1 e₂",
            "leaky = (k where k > 0, else rate ⊙ k) + (1 where e₂ > rows[3], else 0) ⊙ (e₂ − rows[3])",
            "decay = 1 / (1 + softplus(e₂) + exp(min(e₁, 1)))",
            "m = decay ⊙ logitsₜ₋₁ + (1 − decay) ⊙ min(leaky, 3)",
            "new_yₜ = 0.9 new_yₜ₋₁ + √(1 + relu(widen (tanh(narrow max(e₁, −0.5)) + constructor)))",
            "u = back[1] m",
            "yₜ = tanh(m / max(new_yₜ, rate)) − 0.1 u₂",
            "logitsₜ = −m",
        ],
    ),
]
DERIVATIVES: list[tuple[Cell, list[str]]] = [
    (
        LSTM(),
        [
            "dc = dcₜ + dhₜ ⊙ o ⊙ (1 − tanh(cₜ)²)",
            "dcₜ₋₁ = dc ⊙ f",
            "da₄ = dhₜ ⊙ tanh(cₜ) ⊙ o ⊙ (1 − o)",
            "da₃ = dc ⊙ i ⊙ (1 − g²)",
            "da₂ = dc ⊙ cₜ₋₁ ⊙ f ⊙ (1 − f)",
            "da₁ = dc ⊙ g ⊙ i ⊙ (1 − i)",
            "dhₜ₋₁ = W_hhᵀ da",
        ],
    ),
    (
        GRU(),
        [
            "da₃ = (dhₜ − dhₜ ⊙ z) ⊙ (1 − n²)",
            "de₃ = da₃ ⊙ r",
            "da₂ = dhₜ ⊙ (hₜ₋₁ − n) ⊙ z ⊙ (1 − z)",
            "da₁ = da₃ ⊙ e₃ ⊙ r ⊙ (1 − r)",
            "dhₜ₋₁ = dhₜ ⊙ z + W_hhᵀ (da₁, da₂, de₃)",
        ],
    ),
    (
        RHN(depth=2),
        [
            "de₂ = dsₜ ⊙ (tanh(e₁) − s₁) ⊙ g₂ ⊙ (1 − g₂)",
            "de₁ = dsₜ ⊙ g₂ ⊙ (1 − tanh(e₁)²)",
            "ds₁ = dsₜ − dsₜ ⊙ g₂ + W_hh[2]ᵀ de",
            "da₂ = ds₁ ⊙ (tanh(a₁) − sₜ₋₁) ⊙ g₁ ⊙ (1 − g₁)",
            "da₁ = ds₁ ⊙ g₁ ⊙ (1 − tanh(a₁)²)",
            "dsₜ₋₁ = ds₁ − ds₁ ⊙ g₁ + W_hh[1]ᵀ da",
        ],
    ),
    (MinGRU(), ["da₂ = dhₜ ⊙ z", "dhₜ₋₁ = dhₜ − da₂", "da₁ = dhₜ ⊙ (a₂ − hₜ₋₁) ⊙ z ⊙ (1 − z)"]),
    (RNN(), ["δ₁ = dhₜ ⊙ (1 − hₜ²)", "dhₜ₋₁ = W_hhᵀ δ₁"]),
]


@pytest.mark.parametrize(("cell", "lines"), EQUATIONS, ids=repr)
def test_equations(cell: Cell, lines: list[str]) -> None:
    assert equations(trace(cell, False))[-len(lines) :] == lines


@pytest.mark.parametrize(("cell", "lines"), DERIVATIVES, ids=repr)
def test_derivatives(cell: Cell, lines: list[str]) -> None:
    assert derivative(trace(cell, False)) == lines


def test_derivatives_of_normalizations_and_of_functions_of_parameters() -> None:
    lines = derivative(trace(LSTM(layer_norm=True), False))
    assert "dw_ln_gates[1] = de₁ ⊙ normalize(a₁)" in lines
    assert "da₁ = normalize′(a₁, de₁ ⊙ w_ln_gates[1])" in lines
    assert derivative(trace(Leaky(), False))[0].startswith("dσ(leak) = dhₜ ⊙ (")


def test_latex() -> None:
    gru = r"""\begin{aligned}
  a &= W_{ih} \, x_{t} + b_{ih} \\
  e &= W_{hh} \, h_{t-1} + b_{hh} \\
  r &= \sigma(a_{1} + e_{1}) \\
  z &= \sigma(a_{2} + e_{2}) \\
  n &= \operatorname{tanh}(a_{3} + r \odot e_{3}) \\
  h_{t} &= n + z \odot (h_{t-1} - n)
\end{aligned}"""
    assert latex(trace(GRU(), False)) == gru
    backward = latex(trace(RHN(depth=2), False), backward=True).splitlines()
    assert backward[3] == r"  ds_{1} &= ds_{t} - ds_{t} \odot g_{2} + {W_{hh}^{(2)}}^{\top} \, de \\"
    assert latex(trace(RNN(), False), backward=True).splitlines()[1].startswith(r"  \delta_{1} &= dh_{t} \odot")


@settings(max_examples=60, deadline=None)
@given(cell=cells(), square=st.booleans())
def test_names_of_a_derivative_are_defined(cell: Any, square: bool) -> None:
    program = trace(cell, square)
    states = [f"{state}{step}" for state in cell.states for step in ("ₜ", "ₜ₋1")]
    letters = {one.name: "W" if one.columns else "w" for one in program.parameters}
    named = [re.sub("^weight", letter, re.sub("^bias", "b", name)) for name, letter in letters.items()]
    functions = ["exp", "log", "tanh", "σ", "softplus", "relu", "max", "min", "normalize", "rms_normalize"]
    primes = ["normalize′", "rms_normalize′"]
    defined = {"xₜ", *states, *(f"d{state}ₜ" for state in cell.states), *named, *functions, *primes, "where", "else"}
    forward = len(equations(program))
    for number, line in enumerate([*equations(program), *derivative(program)]):
        name, text = re.sub(r"\[\d+\]", "", line.translate(DIGITS)).split(" = ")
        for used in (one.rstrip("ᵀ²") for one in re.findall(r"[^\W\d²](?:[\w′]|₋|,[\dₜ])*", text)):
            assert any(name in (used, f"{used}1") or name.startswith(f"{used}(") for name in defined), line
        defined |= {name, *(f"{name}{part}" for part in range(1, 5) if number < forward)}
    assert {f"d{state}ₜ₋1" for state in cell.states} <= defined


DIGITS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


@pytest.mark.parametrize("cell", [*(kind() for kind in CELLS.values()), Odd()], ids=lambda cell: cell.kind)
def test_braces_and_parentheses_are_closed(cell: Cell) -> None:
    program = trace(cell, False)
    for written in (latex(program), latex(program, backward=True), *equations(program), *derivative(program)):
        for opened, closed in ("{}", "()", "[]"):
            assert written.count(opened) == written.count(closed)
