"""Layers that read rows of a table instead of a dense input."""

from typing import Any

import pytest
import torch

from charlm.layers import Lookup, RecurrentLayers
from tests.cells.measure import CASES, Case, Run, assert_as_accurate, in_dtype_of, random_state
from tests.pairwise import pairwise

pytestmark = pytest.mark.usefixtures("needs_kernels")


@pairwise(case=CASES, size=[(4, 5, 3), (4, 5, 40), (50, 40, 4)], one_hot=[False, True])
def test_lookup_errs_no_more_than_the_reference(case: Case, size: tuple[int, int, int], one_hot: bool) -> None:
    """With fewer characters than inputs the table is mapped, with more its rows in use; most inputs are one of them."""
    steps, batch_size, vocabulary = size
    input_size = vocabulary if one_hot else 6
    stack = case.build(input_size, 21, 2)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter *= 0.5  # Long windows: no chaos, in which every error grows without bound.
    state = random_state(stack, batch_size)
    ids = torch.randint(vocabulary, (batch_size, steps)).t() * (torch.rand(steps, batch_size) < 0.3)
    table = torch.randn(vocabulary, input_size, dtype=torch.float64)
    upstream = torch.randn(steps, batch_size, 21, dtype=torch.float64) + 0.5

    def found(forward: Any, stack: RecurrentLayers) -> Run:
        dtype = next(stack.parameters()).dtype
        rows = table.to(dtype).requires_grad_()
        _, first = in_dtype_of(stack, upstream, state)
        y, _ = forward(Lookup(ids, None if one_hot else rows), first)
        parameters = dict(stack.named_parameters()) | ({} if one_hot else {"table": rows})
        gradients = torch.autograd.grad(y, list(parameters.values()), upstream.to(dtype))
        return {"y": y.detach()} | dict(zip(parameters, gradients, strict=True))

    truth = found(stack.forward_reference, stack)
    stack = stack.float()
    assert_as_accurate([found(stack, stack)], [found(stack.forward_reference, stack)], [truth])


@pytest.mark.parametrize("id", [-1, 4, 10**12])
def test_lookup_of_a_row_that_is_not_there(case: Case, id: int) -> None:
    for table in (None, torch.zeros(4, 4)):
        with pytest.raises(ValueError, match=r"^ids of a lookup: found .*; allowed: 0 to 3$"):
            case.build(4, 5).float()(Lookup(torch.tensor([[1, id]]), table))


def test_lookup_of_a_wrong_width(case: Case) -> None:
    stack = case.build(6, 4)
    with pytest.raises(ValueError, match=rf"^{case.kind}: input of shape \[2, 3, 5\]; allowed: \[T, B, 6\]"):
        stack(Lookup(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(9, 5)))
