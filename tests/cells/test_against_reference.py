"""`forward`, whatever it runs, against the reference in float64, at odd sizes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.cells.measure import (
    CASES,
    Case,
    Run,
    as_tuple,
    assert_as_accurate,
    assert_equal_runs,
    random_input,
    random_state,
    run,
)
from tests.pairwise import pairwise

# T, B, I, H, L; the first is the one of --quick.
SIZES = [
    (6, 3, 5, 17, 2),
    (1, 1, 1, 1, 1),
    (6, 3, 2, 1, 2),
    (1, 1, 5, 17, 3),
    (12, 1, 4, 17, 2),
    (5, 4, 33, 130, 1),
    (3, 2, 7, 130, 3),
]


@pairwise(case=CASES, size=SIZES, kernels=[True, False])
def test_forward_errs_no_more_than_the_reference(
    case: Case, size: tuple[int, ...], kernels: bool, device: torch.device, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue("needs_kernels" if kernels and device.type == "cpu" else "no_kernels")
    steps, batch_size, input_size, hidden_size, num_layers = size
    stack = case.build(input_size, hidden_size, num_layers)
    inputs = [(random_input(stack, steps, batch_size), random_state(stack, batch_size)) for _ in range(5)]

    truth = [run(stack.forward_reference, stack, x, state) for x, state in inputs]
    stack = stack.float().to(device)

    def runs(forward: Callable[..., Any]) -> list[Run]:
        found = []
        for x, state in inputs:
            tensors = tuple(tensor.float().to(device) for tensor in as_tuple(state))
            first = tensors[0] if len(tensors) == 1 else tensors
            found.append(run(forward, stack, x.float().to(device), first))
        return found

    # cuDNN approximates tanh and σ: on an H100 it erred up to 17 times as much as is allowed to others.
    by_cudnn = device.type == "cuda" and "cuDNN" in stack.select_backend(device).description
    assert_as_accurate(runs(stack), runs(stack.forward_reference), truth, slack=35 if by_cudnn else 1)


def test_gradients_are_the_same_in_eval_mode(case: Case, device: torch.device) -> None:
    stack = case.build(5, 17, 2).to(device)
    x, state = random_input(stack, 4, 3).to(device), random_state(stack, 3)
    train = run(stack, stack, x, state)
    found = run(stack.eval(), stack, x, state)
    for name, tensor in train.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-12)


def test_dropped_weights_are_those_of_the_reference(case: Case, device: torch.device) -> None:
    stack = case.build(5, 17, 2, weight_dropout=0.4).to(device)
    x, state = random_input(stack, 4, 3).to(device), random_state(stack, 3)

    def found(forward: Callable[..., Any]) -> Run:
        torch.manual_seed(1)
        return run(forward, stack, x, state)

    # Warnings are errors here, and torch warns of weights in more than one chunk.
    assert_equal_runs(found(stack), found(stack.forward_reference), tolerance=1e-11)


def test_no_state_is_a_state_of_zeros(case: Case) -> None:
    stack = case.build(3, 5, 2)
    x = random_input(stack, 4, 2)
    y, last = stack(x)
    expected_y, expected_last = stack(x, stack.zero_state(2))
    assert torch.equal(y, expected_y)
    assert all(map(torch.equal, as_tuple(last), as_tuple(expected_last)))


def test_float32_state_and_outputs_keep_the_shapes(case: Case) -> None:
    stack = case.build(3, 5, 2).float()
    y, last = stack(torch.randn(4, 2, 3))
    assert y.shape == (4, 2, 5)
    assert y.dtype == torch.float32
    assert isinstance(last, torch.Tensor) == (len(stack.state_names) == 1)
    assert [tensor.shape for tensor in as_tuple(last)] == [(2, 2, 5)] * len(stack.state_names)
    assert torch.equal(as_tuple(last)[0][-1], y[-1])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cudnn_finds_its_weights_in_one_buffer() -> None:
    stack = Case("lstm").start(3, 8, 2).cuda()
    parameters = list(stack.parameters())
    values = [parameter.detach().clone() for parameter in parameters]
    for module in (stack, copy.deepcopy(stack)):
        # Warnings are errors here, and torch warns of weights in more than one chunk.
        module(torch.randn(4, 2, 3, device="cuda"))[0].sum().backward()
        for layer in range(2):
            assert len({w.untyped_storage().data_ptr() for w in module.layer_parameters(layer)}) == 1
    assert all(now is before for now, before in zip(stack.parameters(), parameters, strict=True))
    assert all(map(torch.equal, parameters, values))
