"""What holds of any recurrent layer: windows join, layers stack, resets begin a stream."""

import itertools
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from charlm.cells import LSTM, RNN
from charlm.layers import Lookup, RecurrentLayers
from tests.cells.measure import (
    RESET_STEPS,
    Case,
    assert_equal_runs,
    by_kernel,
    in_dtype_of,
    random_input,
    random_state,
    resets_of,
    run,
    seeded,
)


def test_windows_join(case: Case) -> None:
    stack = case.build(3, 5, 3, residual=True, zoneout=0.3).eval()
    x, state = random_input(stack, 7, 3), random_state(stack, 3)

    def in_two_windows(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        first_y, between = stack(x[:3], state)
        second_y, last = stack(x[3:], between)
        return torch.cat([first_y, second_y]), last

    assert_equal_runs(run(in_two_windows, stack, x, state), run(stack, stack, x, state), tolerance=1e-11)


@pytest.mark.parametrize("way", ["kernel", "reference"])
def test_a_reset_begins_a_stream_which_ends_at_its_length(case: Case, way: str) -> None:
    """As if each stretch of a stream were alone; with the batch first."""
    T, lengths = 7, (4, 7, 6, 0)
    stack = case.build(3, 5, 2, zoneout=0.3, residual=True).eval()
    if way == "kernel":
        stack = stack.float()
    forward = by_kernel(stack) if way == "kernel" else stack.forward_reference
    x, state = in_dtype_of(stack, random_input(stack, T, 4), random_state(stack, 4))

    def stretch_by_stretch(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y, last = x.new_zeros(4, T, 5), []
        for b, (resets, length) in enumerate(zip(RESET_STEPS, lengths, strict=True)):
            of_stream = tuple(tensor[:, b : b + 1] for tensor in state)
            for start, end in itertools.pairwise(sorted({0, *resets, T})):
                if start in resets and start < length:
                    of_stream = stack.zero_state(1)
                steps = slice(start, min(end, length))
                if start < length:
                    y[b : b + 1, steps], of_stream = stack.forward_reference(x[b : b + 1, steps], of_stream)
            last.append(of_stream)
        return y, tuple(torch.cat(tensors, dim=1) for tensors in zip(*last, strict=True))

    stack.batch_first, x = True, x.transpose(0, 1)
    expected = run(stretch_by_stretch, stack, x, state)
    x = x.clone()
    for b, length in enumerate(lengths):
        x[b, length:] = torch.nan
    found = run(seeded(forward, resets_of(T, 4), torch.tensor(lengths)), stack, x, state)
    assert_equal_runs(found, expected, tolerance=1e-5 if way == "kernel" else 1e-11)


def test_no_state_is_a_state_of_zeros_and_shapes_are_kept(case: Case) -> None:
    stack = case.build(3, 5, 2).float()
    x = torch.randn(4, 2, 3)
    (y, last), (expected_y, expected_last) = stack(x), stack(x, stack.zero_state(2))
    assert torch.equal(y, expected_y)
    assert all(map(torch.equal, last, expected_last))
    assert (y.shape, y.dtype) == ((4, 2, 5), torch.float32)
    assert [tensor.shape for tensor in last] == [(2, 2, 5)] * len(stack.state_names)
    assert torch.equal(last[0][-1], y[-1])


# What a caller can get wrong


def test_options_that_a_cell_does_not_allow() -> None:
    for options in ({"nonlinearity": "sigmoid"}, {"hidden": 2.0}, {"hiden": 4}):
        with pytest.raises(ValidationError) as refused:
            RNN(**options)
        assert [error["loc"] for error in refused.value.errors()] == [tuple(options)]


ZEROS = torch.zeros(2, 2, 4)
X = torch.zeros(5, 2, 3)
# Arguments of two layers with I = 3 and H = 4.
MIXED_UP: dict[str, tuple[Any, ...]] = {
    "an input of two dimensions": (torch.zeros(5, 3),),
    "another number of inputs": (torch.zeros(5, 2, 4),),
    "a packed sequence": (nn.utils.rnn.pack_padded_sequence(X, torch.tensor([5, 3])),),
    "another device": (X.to("meta"),),
    "another type": (X.to(torch.bfloat16),),
    "another batch size": (X.transpose(0, 1), (ZEROS, ZEROS)),
    "a state of another size": (X, (ZEROS, torch.zeros(2, 2, 3))),
    "a state too few": (X, (ZEROS,)),
    "a state of another type": (X, (ZEROS.double(), ZEROS)),
    "resets with the batch first": (X, None, torch.zeros(2, 5).bool()),
    "a length too few": (X, None, None, [5]),
    "a length of more steps than there are": (X, None, None, [5, 6]),
    "a lookup below the table": (Lookup(torch.tensor([[1, -1]]), torch.zeros(4, 3)),),
    "a lookup beyond the table": (Lookup(torch.tensor([[1, 4]]), torch.zeros(4, 3)),),
    "a table of another width": (Lookup(torch.tensor([[1, 2]]), torch.zeros(9, 5)),),
}


@pytest.mark.parametrize("arguments", MIXED_UP.values(), ids=MIXED_UP)
def test_arguments_that_do_not_fit_are_named(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^(lstm: |ids |table ).*found .*; allowed: "):
        Case("lstm").start(3, 4, 2)(*arguments)


def test_layers_take_an_object_of_a_cell_and_whole_numbers() -> None:
    with pytest.raises(TypeError):
        RecurrentLayers("lstm", 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="allowed: a whole number ≥ 1"):
        RecurrentLayers(LSTM(), 5.0)  # type: ignore[arg-type]
