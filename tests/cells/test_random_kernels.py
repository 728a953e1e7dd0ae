"""Random cells: the C++ that is generated from their programs errs no more than the reference does."""

from typing import Any, ClassVar
from unittest import mock

import pytest
import torch

from charlm.cells import Cell, Parameters, sigmoid, tanh
from charlm.cells.cpp import cpp
from charlm.layers import RecurrentLayers
from charlm.native.fused import FusedDriver
from tests.cells.programs import drawn
from tests.cells.test_kernels import hold_to_the_rule

OPTIONS: list[dict[str, Any]] = [{}, {"state_dropout": 0.3}, {"zoneout": 0.3}, {"weight_dropout": 0.2}]
HIDDEN = 19


@pytest.mark.slow
@pytest.mark.usefixtures("needs_kernels", "poison")
def test_kernels_of_random_cells(threads: Any) -> None:
    threads(2)
    hold_kernels_to_the_rule(drawn(6, HIDDEN, most=7))


class Ahead(Cell):
    """Its new c is known before the products of the old one are."""

    states: ClassVar = ("h", "c")

    def step(self, p: Parameters, x: Any, h: Any, c: Any) -> Any:
        u = tanh(p.product("weight_ih", x))
        return tanh(p.product("weight_hh", c) + u), c + sigmoid(p.vector("rate")) * (u - c)


@pytest.mark.usefixtures("needs_kernels", "poison")
@pytest.mark.parametrize("number", [1, 4])
def test_a_state_that_is_known_before_the_products_of_the_old_one(number: int, threads: Any) -> None:
    threads(number)
    stack = RecurrentLayers(Ahead(hidden=40), 7, 2, state_dropout=0.3).double()
    hold_to_the_rule(stack, steps=5, batch_size=9)


def hold_kernels_to_the_rule(cells: list[Cell]) -> None:
    """Each in one layer, by one library. Every second layer has as many inputs as units."""
    stacks = []
    for number, cell in enumerate(cells):
        torch.manual_seed(number)
        stack = RecurrentLayers(cell, (7, HIDDEN)[number % 2], **OPTIONS[number // 2 % len(OPTIONS)]).double()
        with torch.no_grad():
            for parameter in stack.parameters():
                parameter += 0.2 * torch.randn_like(parameter)
        stacks.append(stack)
    programs = [stack.passes(0) for stack in stacks]
    with mock.patch.object(RecurrentLayers, "cpu_driver", FusedDriver("random", programs, cpp(programs))):
        for stack in stacks:
            try:
                hold_to_the_rule(stack, steps=4, batch_size=5)
            except AssertionError as error:
                raise AssertionError(f"{stack.cell!r}: {error}") from error
