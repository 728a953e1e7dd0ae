"""Gradients against finite differences."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cells.measure import Case, as_tuple, random_input, random_state

ON_TORCH = {"dropout": 0.3, "weight_dropout": 0.3, "residual": True}
ON_THE_REFERENCE = ON_TORCH | {"state_dropout": 0.3, "zoneout": 0.3}


@pytest.mark.parametrize(
    ("which", "options"),
    [("forward", ON_TORCH), ("forward_reference", ON_TORCH), ("forward", ON_THE_REFERENCE)],
    ids=["forward", "reference", "forward by the reference"],
)
def test_gradients_are_those_of_finite_differences(case: Case, which: str, options: dict[str, Any]) -> None:
    stack = case.build(2, 2, 2, **options)
    x = random_input(stack, 2, 2).requires_grad_()
    state = tuple(tensor.detach().requires_grad_() for tensor in as_tuple(random_state(stack, 2)))

    def outputs(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        # gradcheck moves the inputs, parameters among them, in place; the seed holds the masks still.
        torch.manual_seed(3)
        first = rest[: len(state)]
        y, last = getattr(stack, which)(x, first[0] if len(first) == 1 else first)
        # Not internal states: an sLSTM scales its own by e^−m, whose choice has no gradient. The outputs of the second
        # step depend on theirs.
        states = zip(stack.state_names, as_tuple(last), strict=True)
        return y, *(tensor for name, tensor in states if name not in stack.cell.internal)

    assert torch.autograd.gradcheck(outputs, (x, *state, *stack.parameters()))
