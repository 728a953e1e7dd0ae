"""Random cells: the program of a step, and what is made of it, compute what the step computes on tensors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.cells import CELLS, Cell
from charlm.cells.program import scalarized
from charlm.cells.trace import trace
from charlm.layers import RecurrentLayers
from tests.cells.programs import assert_program_is_step, cells


@settings(max_examples=60, deadline=None)
@given(cells(), st.sampled_from([3, 4]))
def test_a_program_computes_what_its_step_does(cell: Cell, inputs: int) -> None:
    assert_program_is_step(cell, inputs)


@pytest.mark.parametrize("inputs", [3, 4])
@pytest.mark.parametrize("kind", CELLS)
def test_programs_of_every_kind(kind: str, inputs: int) -> None:
    assert_program_is_step(CELLS[kind](hidden=4), inputs)


@settings(max_examples=60, deadline=None)
@given(cells(), st.booleans())
def test_scalarized_programs_have_single_vectors(cell: Cell, square: bool) -> None:
    program = scalarized(trace(cell, square))
    assert scalarized(program) == program
    for node in program.nodes:
        assert node.count == 1 or node.op in ("vector", "product")
        several = [program.nodes[arg].count for arg in node.args if program.nodes[arg].count > 1]
        assert not several or node.op == "part"


@settings(max_examples=40, deadline=None)
@given(cells(), st.booleans())
def test_values_of_a_random_cell_stay_small(cell: Cell, square: bool) -> None:
    layers = RecurrentLayers(cell, 4 if square else 3)
    y, _ = layers.forward_reference(torch.randn(30, 2, layers.input_size))
    assert y.abs().max() <= 1
