"""The equations of a program for people: `charlm.cells.equations`. The pages of the kinds hold their lines."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.cells import LSTM, RHN, SRU, Cell, sigmoid
from charlm.cells.cell import trace
from charlm.cells.equations import derivative, equations, notes
from charlm.layers import RecurrentLayers
from tests.cells.measure import CASES, Case, random_input, random_state
from tests.cells.programs import cells
from tests.cells.written import evaluate, parameters, vectors
from tests.export.odd import Odd


class Leaky(Cell):
    kind: Any = "leaky"

    def step(self, p: Any, x: Any, h: Any) -> Any:
        return h + sigmoid(p.vector("leak")) * (p.product("w", x) - h)


def assert_lines_are_the_step(stack: RecurrentLayers) -> None:
    """What is printed gives the numbers of the reference loop, and the gradients of states and of vectors."""
    program = trace(stack.cell, stack.input_size == stack.cell.hidden)
    x, state = random_input(stack, 1, 3).detach().requires_grad_(), random_state(stack, 3)
    state = tuple(tensor.detach().requires_grad_() for tensor in state)
    tensors = {name.removesuffix("_l0"): tensor for name, tensor in stack.named_parameters()}
    _, last = stack.forward_reference(x, state)
    upstream = {name: torch.randn_like(tensor) for name, tensor in zip(program.states, last, strict=True)}
    sum((tensor * upstream[name]).sum() for name, tensor in zip(program.states, last, strict=True)).backward()

    own = parameters(program, {name: tensor.detach().numpy() for name, tensor in tensors.items()})
    given = {"xₜ": x.detach(), **{f"d{name}ₜ": gradient for name, gradient in upstream.items()}}
    given |= {f"{name}ₜ₋₁": tensor.detach() for name, tensor in zip(program.states, state, strict=True)}
    values = {name: vectors(tensor.numpy()) for name, tensor in given.items()} | own
    found = evaluate([*equations(program), *derivative(program)], values)
    for name, after, before in zip(program.states, last, state, strict=True):
        gradient = torch.zeros_like(before) if before.grad is None else before.grad
        for printed, expected in ((f"{name}_after", after.detach()), (f"d{name}_before", gradient)):
            value = torch.as_tensor(found[printed], dtype=torch.float64).expand_as(expected)
            torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-11, msg=lambda m, at=printed: f"{at}: {m}")
    if "dx_after" in found:
        torch.testing.assert_close(torch.as_tensor(found["dx_after"]), x.grad, rtol=1e-11, atol=1e-11)
    for name, parameter in zip(own, program.parameters, strict=True):
        if f"d{name}" not in found:
            continue
        of_rows = found[f"d{name}"]
        rows = [of_rows[k] for k in sorted(of_rows)] if isinstance(of_rows, dict) else [of_rows]
        summed = torch.cat([torch.as_tensor(row).sum(1).flatten() for row in rows])
        torch.testing.assert_close(summed, tensors[parameter.name].grad.flatten(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("inputs", [3, 4], ids=["I ≠ H", "I = H"])
@pytest.mark.parametrize("case", [*CASES, Case("sru", {"normalize": False})], ids=str)
def test_printed_lines_of_the_kinds_are_their_steps(case: Case, inputs: int) -> None:
    assert_lines_are_the_step(case.build(inputs, 4))


@settings(max_examples=60, deadline=None)
@given(cell=st.one_of(cells(), st.just(Odd(hidden=4)), st.just(Leaky(hidden=4))), square=st.booleans())
def test_printed_lines_of_any_cell_are_its_step(cell: Any, square: bool) -> None:
    torch.manual_seed(0)
    assert_lines_are_the_step(RecurrentLayers(cell, 4 if square else 3).double())


# The last lines of the equations.
EQUATIONS: list[tuple[Cell, list[str]]] = [
    (LSTM(layer_norm=True), ["hₜ = o ⊙ tanh(normalize(cₜ) ⊙ w_ln_cell + b_ln_cell)"]),
    (RHN(depth=1), ["a = W_ih xₜ + b_hh[1] + W_hh[1] sₜ₋₁", "g₁ = σ(a[2])", "sₜ = sₜ₋₁ + g₁ ⊙ (tanh(a[1]) − sₜ₋₁)"]),
    (SRU(), ["e = √(3) a[4]", "hₜ = e + r ⊙ (cₜ − e)"]),
    # Every operation
    (
        Odd(),
        [
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
        ],
    ),
]


@pytest.mark.parametrize(("cell", "lines"), EQUATIONS, ids=repr)
def test_equations(cell: Cell, lines: list[str]) -> None:
    assert equations(trace(cell, False))[-len(lines) :] == lines


def test_derivatives_of_normalizations_and_of_functions_of_parameters() -> None:
    lines = derivative(trace(LSTM(layer_norm=True), False))
    assert "δ₁ = dhₜ ⊙ o ⊙ (1 − k²)" in lines  # of a sum, whose bias has the same
    assert "dw_ln_gates[1] = de[1] ⊙ normalize(a[1])" in lines
    assert "da[1] = normalize′(a[1], de[1] ⊙ w_ln_gates[1])" in lines
    assert "dxₜ = wᵀ δ₁" in derivative(trace(Leaky(), False))
    assert [line.split("(")[0] for line in notes(lines)] == ["normalize", "normalize′"]
