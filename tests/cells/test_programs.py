"""What a step becomes: its program, the program in single vectors and the printed equations all give its numbers."""

from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from charlm.cells import LSTM, Cell
from charlm.cells.equations import derivative, equations, notes
from charlm.cells.program import scalarized
from charlm.layers import RecurrentLayers
from tests.cells.forged import assert_every_path, forged
from tests.cells.measure import CASES, Case, assert_equal_runs, random_input, random_state, run
from tests.cells.on_tensors import by_program, by_step
from tests.cells.programs import cells
from tests.cells.written import assert_lines_are_the_step
from tests.export.odd import Odd


class Coupled(Cell):
    """The LSTM whose input gate is 1 − f, with a clipped state, as someone writes it who knows PyTorch alone."""

    states: ClassVar = ("h", "c")
    kind: Any = "coupled"
    clip: float = 3.0

    def step(self, p: Any, x: Any, h: Any, c: Any) -> Any:
        f, g, o = p.product("w_x", x, 3) + p.product("w_h", h, 3) + p.vector("b", 3, start=(1.0, None, None))
        f = torch.sigmoid(f)
        c = torch.clamp(f * c + (1 - f) * F.silu(g), min=-self.clip, max=self.clip)
        return torch.sigmoid(o) * torch.where(c > 0, c, torch.tanh(c)), c


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
@given(st.one_of(cells(), st.just(Odd(hidden=4)), st.just(Coupled(hidden=4))), st.sampled_from([3, 4]))
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
