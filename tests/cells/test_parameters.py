"""Which parameters a stack has, where they start, and what it says of itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cells.measure import Case, random_input

# Shapes and initial values of layers with I = 3 and H = 4, for kinds that torch.nn lacks.
Shapes = dict[str, tuple[int, ...]]
SHAPES: list[tuple[Case, int, Shapes]] = [
    (Case("rhn", {"depth": 2}), 3, {"weight_ih": (8, 3), "weight_hh": (2, 8, 4), "bias_hh": (2, 8)}),
    (Case("slstm"), 3, {"weight_ih": (16, 3), "weight_hh": (16, 4), "bias": (16,)}),
    (Case("mingru"), 3, {"weight_ih": (8, 3), "bias_ih": (8,)}),
    (Case("minlstm"), 3, {"weight_ih": (12, 3), "bias_ih": (12,)}),
    (Case("sru"), 3, {"weight_ih": (16, 3), "weight_ln_input": (3,), "peephole": (8,), "bias": (8,)}),
    (Case("sru", {"normalize": False}), 4, {"weight_ih": (12, 4), "peephole": (8,), "bias": (8,)}),
    (
        Case("mogrifier", {"rounds": 3, "rank": 2}),
        3,
        {
            "weight_q_right": (2, 2, 4), "weight_q_left": (2, 3, 2), "weight_r_right": (1, 2, 3),
            "weight_r_left": (1, 4, 2), "weight_ih": (16, 3), "weight_hh": (16, 4), "bias_ih": (16,), "bias_hh": (16,),
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("case", "inputs", "shapes"), SHAPES, ids=lambda value: str(value)[:20])
def test_shapes(case: Case, inputs: int, shapes: Shapes) -> None:
    parameters = case.start(inputs, 4).layer_parameters(0)
    assert {name: tuple(tensor.shape) for name, tensor in parameters.items()} == shapes


def test_every_parameter_takes_part(case: Case) -> None:
    alive: dict[str, Tensor] = {}
    # Several stacks, for a relu that is dead in one lives in another.
    for _ in range(5):
        stack = case.build(3, 4, 2)
        y, _ = stack(random_input(stack, 8, 8))
        y.square().sum().backward()
        for name, parameter in stack.named_parameters():
            assert parameter.grad is not None, name
            alive[name] = alive.get(name, torch.tensor(False)) | (parameter.grad != 0)
    assert all(entries.all() for entries in alive.values()), alive


def test_parameters_start_uniform_unless_they_have_a_start(case: Case) -> None:
    """Within ±1/√H, as in torch.nn; `init_uniform_` draws weights within its bound and clears biases."""
    stack = case.start(9, 64, 2)
    first = {name: parameter.detach().clone() for name, parameter in stack.named_parameters()}
    for parameter in stack.parameters():
        torch.nn.init.constant_(parameter, 5.0)
    stack.init_uniform_(0.01)
    for layer in range(2):
        for declared in stack.program(layer).parameters:
            name = f"{declared.name}_l{layer}"
            if declared.bound is not None:
                continue
            without_start = [start is None for start in declared.starts or [None]]
            rows = first[name].view(len(without_start), -1), stack.get_parameter(name).view(len(without_start), -1)
            for drawn, at_start, now in zip(without_start, *rows, strict=True):
                if not drawn:
                    assert torch.equal(now, at_start), name
                    continue
                assert 0.8 / 8 < at_start.max() <= 1 / 8, name
                assert -1 / 8 <= at_start.min() < -0.8 / 8, name
                largest = now.abs().max()
                assert (0.009 < largest <= 0.01) if name.startswith("weight") else largest == 0, name


# Kind and options; a parameter of a layer with H = 500, in rows of H; what each row starts with (None: random).
STARTS: list[tuple[str, dict[str, Any], str, list[float | None]]] = [
    ("lstm", {"forget_bias": -0.5}, "bias_ih", [None, -0.5, None, None]),
    ("lstm", {"forget_bias": -0.5}, "bias_hh", [None, 0, None, None]),
    ("lstm", {"forget_bias": None}, "bias_ih", [None] * 4),
    ("lstm", {"layer_norm": True, "forget_bias": 0.5}, "bias_ln_gates", [0, 0.5, 0, 0]),
    ("lstm", {"layer_norm": True, "forget_bias": 0.5}, "weight_ln_gates", [1] * 4),
    ("lstm", {"layer_norm": True, "forget_bias": 0.5}, "weight_ln_cell", [1]),
    ("lstm", {"layer_norm": True, "forget_bias": 0.5}, "bias_ln_cell", [0]),
    ("lstm", {"layer_norm": True, "forget_bias": 0.5}, "bias_ih", [None] * 4),
    ("slstm", {"forget_bias": 2.5}, "bias", [None, 2.5, None, None]),
    ("rhn", {"depth": 2, "couple_gates": False, "gate_bias": -1.5}, "bias_hh", [None, -1.5, 1.5] * 2),
    ("sru", {"highway_bias": -2.0}, "bias", [0, -2.0]),
]


@pytest.mark.parametrize(("kind", "options", "name", "rows"), STARTS)
def test_special_biases(kind: str, options: dict[str, Any], name: str, rows: list[float | None]) -> None:
    stack = Case(kind).start(3, 500, 2, **options)
    resets: list[tuple[Callable[[], None], float]] = [(lambda: None, 1), (lambda: stack.init_uniform_(0.1), 0)]
    for reset, spread in resets:
        reset()
        for layer in range(2):
            found = stack.get_parameter(f"{name}_l{layer}").view(-1, 500)
            for values, start in zip(found, rows, strict=True):
                assert (len(values.unique()) > 1) == (start is None and spread == 1)
                assert start is None or (values == start).all()


def test_peepholes_of_an_sru_start_with_a_variance_of_one_half() -> None:
    stack = Case("sru").start(3, 500)
    assert stack.get_parameter("peephole_l0").var().item() == pytest.approx(0.5, rel=0.2)


def test_rhn_learned_carry_starts_as_the_coupled_one() -> None:
    state, x = (torch.randn(1, 2, 4),), torch.randn(6, 2, 3)
    outputs = []
    for couple_gates in (True, False):
        stack = Case("rhn").start(3, 4, couple_gates=couple_gates)
        stack.init_uniform_(0.0)
        outputs.append(stack(x, state)[0])
    torch.testing.assert_close(*outputs)


def test_orthogonal_matrices() -> None:
    stack = Case("mogrifier").start(3, 4)
    stack.init_orthogonal_()
    for name, columns in (("weight_q", 3), ("weight_hh", 4)):
        for block in stack.get_parameter(f"{name}_l0").view(-1, columns, 4):
            torch.testing.assert_close(block @ block.t(), torch.eye(columns))
