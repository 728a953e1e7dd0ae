"""States that are set to zero inside a window: as if the stream ended there and another began."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from charlm.gpu.recurrence import TensorRecurrence
from tests.cells.measure import (
    CASES,
    Case,
    Run,
    as_tuple,
    assert_as_accurate,
    assert_equal_runs,
    in_dtype_of,
    own,
    random_input,
    random_state,
    run,
    steps_by_triton,
)
from tests.pairwise import pairwise

# Steps at which each of four streams is reset: at the first, twice in a row and at the last, and never.
RESETS = ((0, 4), (2, 3), (6,), ())
STEPS = 7
OPTIONS: list[dict[str, Any]] = [
    {},
    {"state_dropout": 0.4, "weight_dropout": 0.2, "zoneout": 0.3, "dropout": 0.2},
    {"zoneout": 0.3, "residual": True},
]


def resets_of(batch_size: int) -> Tensor:
    resets_TB = torch.zeros(STEPS, batch_size, dtype=torch.bool)
    for b in range(batch_size):
        for t in RESETS[b % len(RESETS)]:
            resets_TB[t, b] = True
    return resets_TB


def resetting(forward: Callable[..., Any], batch_size: int) -> Callable[..., Any]:
    """`forward` with resets, and the same masks at every call."""

    def call(*args: Any) -> Any:
        torch.manual_seed(1)
        return forward(*args, resets_of(batch_size))

    return call


def one_by_one(stack: Any, x: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Every stretch between two resets by itself, without the others of its window."""
    outputs, last = [], []
    for b, steps in enumerate(RESETS):
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


@pytest.mark.parametrize("options", [{}, {"zoneout": 0.3, "residual": True}], ids=str)
def test_a_reset_begins_a_stream(case: Case, options: dict[str, Any]) -> None:
    stack = case.build(3, 5, 2, **options).eval()
    x, state = random_input(stack, STEPS, 4), random_state(stack, 4)
    expected = run(lambda *inputs: one_by_one(stack, *inputs), stack, x, state)
    assert_equal_runs(run(resetting(stack.forward_reference, 4), stack, x, state), expected, tolerance=1e-11)


@pytest.mark.usefixtures("poison")
@pairwise(case=CASES, options=OPTIONS, training=[True, False])
def test_the_loop_with_its_own_backward_pass(case: Case, options: dict[str, Any], training: bool) -> None:
    stack = case.build(3, 17, 2, **options).train(training)
    x, state = random_input(stack, STEPS, 4), random_state(stack, 4)
    expected = run(resetting(stack.forward_reference, 4), stack, x, state)
    assert_equal_runs(run(resetting(own(stack), 4), stack, x, state), expected, tolerance=1e-11)
    with torch.no_grad():
        y, _ = resetting(own(stack), 4)(x, state)
    torch.testing.assert_close(y, expected["y"], rtol=0, atol=1e-11)


@pytest.mark.usefixtures("poison", "needs_kernels")
@pairwise(case=CASES, options=OPTIONS, number=[1, 2, 3], hidden_size=[33, 8])
def test_the_cpu_kernels(case: Case, options: dict[str, Any], number: int, hidden_size: int, threads: Any) -> None:
    threads(number)
    hold_to_the_rule(case.build(3, hidden_size, 2, **options), batch_size=4, backend=lambda stack: stack)


@pytest.mark.usefixtures("needs_kernels")
def test_without_gradients_the_cpu_kernels_write_the_same(case: Case) -> None:
    stack = case.build(3, 9, 2, zoneout=0.3).float()
    x, state = in_dtype_of(stack, random_input(stack, STEPS, 4), random_state(stack, 4))
    with_gradients, _ = resetting(stack, 4)(x, state)
    with torch.no_grad():
        without, _ = resetting(stack, 4)(x, state)
    assert torch.equal(with_gradients, without)


@pytest.mark.usefixtures("needs_kernels")
@pairwise(case=CASES, options=OPTIONS[:2])
def test_the_cpu_kernels_in_bf16(case: Case, options: dict[str, Any]) -> None:
    """Without a step before it in the window, a stretch after a reset gives the same bits alone."""
    stack = case.build(3, 40, 1, **options).float().eval()
    x, state = in_dtype_of(stack, random_input(stack, STEPS, 4), random_state(stack, 4))
    resets = torch.zeros(STEPS, 4, dtype=torch.bool)
    resets[3] = True
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        y, last = stack(x, state, resets)
        alone, last_alone = stack(x[3:].contiguous())
    assert torch.equal(y[3:], alone)
    assert all(torch.equal(*pair) for pair in zip(as_tuple(last), as_tuple(last_alone), strict=True))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of numbers that the kernels do not store
@pytest.mark.usefixtures("poison")
@pairwise(case=CASES, options=[OPTIONS[0], OPTIONS[2]])
def test_tritons_kernels(case: Case, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device, where Triton's interpreter is off")

    monkeypatch.setattr(TensorRecurrence, "steps", steps_by_triton)
    hold_to_the_rule(case.build(3, 17, 1, **options), batch_size=2, backend=own)


def hold_to_the_rule(stack: Any, batch_size: int, backend: Callable[[Any], Callable[..., Any]]) -> None:
    """A backend in float32 against the reference, over several inputs."""
    inputs = [(random_input(stack, STEPS, batch_size), random_state(stack, batch_size)) for _ in range(3)]

    def runs(forward: Callable[..., Any]) -> list[Run]:
        return [run(resetting(forward, batch_size), stack, *in_dtype_of(stack, *pair)) for pair in inputs]

    truth = runs(stack.forward_reference)
    stack = stack.float()
    assert_as_accurate(runs(backend(stack)), runs(stack.forward_reference), truth)


@pytest.mark.parametrize(
    ("resets", "found"),
    [(torch.zeros(2, 3), "torch.float32 of shape [2, 3]"), (torch.zeros(3, 2).bool(), "torch.bool of shape [3, 2]")],
)
def test_resets_of_another_kind_or_shape_are_refused(resets: Tensor, found: str) -> None:
    stack = Case("gru").build(3, 5)
    with pytest.raises(ValueError, match="resets are") as refused:
        stack(random_input(stack, 2, 3), None, resets)
    assert str(refused.value) == f"gru: resets are {found}; allowed: torch.bool of shape [T, B] = [2, 3]"
