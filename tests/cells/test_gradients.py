"""Gradients against finite differences."""

import torch
from torch import Tensor

from tests.cells.measure import Case, as_tuple, random_input, random_state

OPTIONS = {"dropout": 0.3, "weight_dropout": 0.3, "residual": True, "state_dropout": 0.3, "zoneout": 0.3}


def test_gradients_of_the_reference_are_those_of_finite_differences(case: Case) -> None:
    stack = case.build(2, 2, 2, **OPTIONS)
    x = random_input(stack, 2, 2).requires_grad_()
    state = tuple(tensor.detach().requires_grad_() for tensor in as_tuple(random_state(stack, 2)))

    def outputs(x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        # gradcheck moves the inputs, parameters among them, in place; the seed holds the masks still.
        torch.manual_seed(3)
        first = rest[: len(state)]
        y, last = stack.forward_reference(x, first[0] if len(first) == 1 else first)
        # Not internal states: an sLSTM scales its own by e^−m, whose choice has no gradient. The outputs of the second
        # step depend on theirs.
        states = zip(stack.state_names, as_tuple(last), strict=True)
        return y, *(tensor for name, tensor in states if name not in stack.cell.internal)

    assert torch.autograd.gradcheck(outputs, (x, *state, *stack.parameters()), fast_mode=True)
