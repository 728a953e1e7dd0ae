"""States that are set to zero inside a window: as if the stream ended there and another began.

`test_against_reference.py` holds the other ways of computing to the reference loop.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cells.measure import (
    RESET_STEPS,
    Case,
    as_tuple,
    assert_equal_runs,
    random_input,
    random_state,
    resets_of,
    run,
    seeded,
)

STEPS = 7


def one_by_one(stack: Any, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Every stretch between two resets by itself, without the others of its window."""
    outputs, last = [], []
    for b, steps in enumerate(RESET_STEPS):
        of_stream = tuple(tensor[:, b : b + 1] for tensor in as_tuple(state))
        pieces = []
        for start, end in zip((0, *steps), (*steps, STEPS), strict=True):
            if start in steps:
                of_stream = as_tuple(stack.zero_state(1))
            if end > start:
                first = of_stream[0] if len(of_stream) == 1 else of_stream
                y, after = stack.forward_reference(x[start:end, b : b + 1], first)
                of_stream = as_tuple(after)
                pieces.append(y)
        outputs.append(torch.cat(pieces))
        last.append(of_stream)
    states = tuple(torch.cat(tensors, dim=1) for tensors in zip(*last, strict=True))
    return torch.cat(outputs, dim=1), states[0] if len(states) == 1 else states


def test_a_reset_begins_a_stream(case: Case) -> None:
    stack = case.build(3, 5, 2, zoneout=0.3, residual=True).eval()
    x, state = random_input(stack, STEPS, 4), random_state(stack, 4)
    expected = run(lambda *inputs: one_by_one(stack, *inputs), stack, x, state)
    found = run(seeded(stack.forward_reference, resets_of(STEPS, 4)), stack, x, state)
    assert_equal_runs(found, expected, tolerance=1e-11)


@pytest.mark.parametrize(
    ("resets", "found"),
    [(torch.zeros(2, 3), "torch.float32 of shape [2, 3]"), (torch.zeros(3, 2).bool(), "torch.bool of shape [3, 2]")],
)
def test_resets_of_another_kind_or_shape_are_refused(resets: Tensor, found: str) -> None:
    stack = Case("gru").build(3, 5)
    with pytest.raises(ValueError, match="resets are") as refused:
        stack(random_input(stack, 2, 3), None, resets)
    assert str(refused.value) == f"gru: resets are {found}; allowed: torch.bool of shape [T, B] = [2, 3]"
