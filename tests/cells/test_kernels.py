"""The fused CPU kernels: threads, dropout, zoneout, memory, values that are not finite."""

import shlex
from typing import Any, Literal

import pytest
import torch
from pydantic import create_model
from torch import Tensor

from charlm.cells import LSTM
from charlm.layers import RecurrentLayers, RecurrentState, cross_entropy, linear
from charlm.native import build
from charlm.native.fused import fused
from tests.cells.measure import (
    CASES,
    Case,
    Run,
    as_tuple,
    assert_as_accurate,
    in_dtype_of,
    random_input,
    random_state,
    run,
)
from tests.pairwise import pairwise

pytestmark = pytest.mark.usefixtures("needs_kernels")


# T, B, I, H; in the last, some of four threads have no unit to compute.
LARGE = [(3, 65, 5, 130), (2, 3, 130, 17), (9, 17, 1, 65), (2, 400, 3, 9)]


def in_float32(stack: RecurrentLayers, steps: int, batch_size: int) -> tuple[RecurrentLayers, Tensor, RecurrentState]:
    x, state = random_input(stack, steps, batch_size), random_state(stack, batch_size)
    return stack.float(), *in_dtype_of(stack, x, state)


def hold_to_the_rule(stack: RecurrentLayers, steps: int, batch_size: int) -> None:
    """The kernel against the reference, over several inputs."""
    inputs = [(random_input(stack, steps, batch_size), random_state(stack, batch_size)) for _ in range(3)]

    def runs(forward: Any, stack: RecurrentLayers) -> list[Run]:
        torch.manual_seed(1)  # The masks of the state: drawn alike in both precisions.
        return [run(forward, stack, *in_dtype_of(stack, *pair)) for pair in inputs]

    truth = runs(stack.forward_reference, stack)
    stack = stack.float()
    assert stack.select_backend("cpu").backend.name == "fused CPU kernel"
    assert_as_accurate(runs(stack, stack), runs(stack.forward_reference, stack), truth)


@pytest.mark.usefixtures("poison")
@pairwise(case=CASES, size=LARGE, number=[1, 2, 3, 4], variational=[False, True])
def test_any_number_of_threads(case: Case, size: tuple[int, ...], number: int, variational: bool, threads: Any) -> None:
    steps, batch_size, input_size, hidden_size = size
    threads(number)
    dropout = {"state_dropout": 0.4, "dropout": 0.2} if variational else {}
    stack = case.build(input_size, hidden_size, 2, variational=variational, **dropout)
    hold_to_the_rule(stack, steps, batch_size)


@pytest.mark.parametrize("number", [1, 4])
def test_dropped_weights_and_residual_connections(case: Case, number: int, threads: Any) -> None:
    threads(number)
    stack = case.build(5, 40, 3, weight_dropout=0.3, dropout=0.2, residual=True)
    hold_to_the_rule(stack, steps=4, batch_size=30)


@pytest.mark.usefixtures("poison")
@pairwise(case=CASES, size=LARGE, number=[1, 4], training=[True, False])
def test_zoneout(case: Case, size: tuple[int, ...], number: int, training: bool, threads: Any) -> None:
    steps, batch_size, input_size, hidden_size = size
    threads(number)
    stack = case.build(input_size, hidden_size, 2, zoneout=0.4, state_dropout=0.3).train(training)
    hold_to_the_rule(stack, steps, batch_size)


@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("options", [{}, {"state_dropout": 0.4, "zoneout": 0.3}], ids=str)
def test_great_depth(number: int, options: dict[str, float], threads: Any) -> None:
    threads(number)
    stack = Case("rhn", {"depth": 10}).build(3, 40, **options)
    hold_to_the_rule(stack, steps=4, batch_size=30)


def test_results_depend_on_nothing_but_the_arguments(case: Case, threads: Any) -> None:
    threads(3)
    stack = case.build(5, 70, 2)
    stack, x, state = in_float32(stack, 6, 9)
    first = run(stack, stack, x, state)
    run(stack, stack, x[:2] * 3, state)
    again = run(stack, stack, x, state)
    assert all(torch.equal(again[name], tensor) for name, tensor in first.items())


@pytest.mark.slow
def test_a_smaller_team_computes_the_same_bits(threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Case("lstm", {"layer_norm": True}).build(20, 70, 2)
    stack, x, state = in_float32(stack, 6, 9)

    def runs() -> list[Run]:
        found = []
        for number in (3, 4):
            threads(number)
            found.append(run(stack, stack, x, state))
        return found

    expected = runs()
    monkeypatch.setenv("CXX", shlex.join([*build.find_compiler(), "-DCHARLM_HALF_TEAM"]))
    monkeypatch.setattr(build, "_outcomes", {})
    for found, wanted in zip(runs(), expected, strict=True):
        assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def test_the_library_of_a_cell_in_a_file_has_the_name_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("charlm.native.fused._drivers", {})
    kind = "/folder/mine.py:Mine"
    assert fused(create_model("Mine", __base__=LSTM, kind=(Literal[kind], kind))()).name == "Mine"  # pyright: ignore


@pytest.mark.parametrize("options", [{}, {"state_dropout": 0.4, "zoneout": 0.3}], ids=str)
def test_no_streams(case: Case, options: dict[str, float]) -> None:
    stack = case.build(3, 20, **options).float()
    y, _ = stack(torch.zeros(4, 0, 3))
    y.sum().backward()
    assert y.shape == (4, 0, 20)
    assert all((parameter.grad == 0).all() for parameter in stack.parameters() if parameter.grad is not None)


def test_a_generator_outlives_a_change_of_threads(case: Case, threads: Any) -> None:
    stack = case.build(4, 5, 2).float()
    decoder = torch.randn(4, 5), torch.zeros(4)
    draws = torch.rand(9, 300, dtype=torch.float64).t()
    texts = []
    for number in (1, 3):
        generator = stack.generator(stack.zero_state(9), None, decoder)
        assert generator is not None
        threads(number)
        texts.append(generator.draw(draws, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0))
        threads(1)
    assert torch.equal(*texts)


def test_forwards_and_backwards_may_interleave(case: Case) -> None:
    stack = case.build(3, 20)
    stack, x, state = in_float32(stack, 5, 2)
    name = next(reversed(stack.parameter_shapes(0)))
    parameter, expected = stack.get_parameter(f"{name}_l0"), run(stack, stack, x, state)[f"d{name}_l0"]
    one, two = stack(x, state)[0], stack(x * 2, state)[0]
    two.sum().backward()
    upstream = torch.randn(one.shape)
    (first,) = torch.autograd.grad(one, [parameter], upstream, retain_graph=True)
    (second,) = torch.autograd.grad(one, [parameter], upstream)
    assert torch.equal(first, second)
    assert first.shape == expected.shape


@pytest.mark.parametrize("zoneout", [0.0, 0.3])
def test_without_gradients_the_outputs_are_the_same(case: Case, zoneout: float) -> None:
    stack = case.build(3, 20, 2, zoneout=zoneout).eval()
    stack, x, state = in_float32(stack, 5, 2)
    expected, expected_last = stack(x, state)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            y, last = stack(x, state)
        assert torch.equal(y, expected)
        assert all(map(torch.equal, as_tuple(last), as_tuple(expected_last)))
        assert not y.requires_grad


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_do_not_hide(case: Case, value: float) -> None:
    stack = case.build(3, 20).float()
    with torch.no_grad():
        stack.layer_parameters(0)[1].view(-1)[0] = torch.nan
    x = torch.full((2, 3, 3), value)
    y, _ = stack(x)
    reference, _ = stack.forward_reference(x)
    assert torch.equal(y.isfinite(), reference.isfinite())
    assert y.isnan().any()


def test_second_derivatives_are_refused(case: Case) -> None:
    stack = case.build(3, 5).float()
    x = torch.randn(2, 1, 3, requires_grad=True)
    logits = torch.randn(2, 3, requires_grad=True)
    for value, of in (
        (stack(x)[0].sum(), x),
        (linear(x, torch.randn(4, 3)).sum(), x),
        (cross_entropy(logits, torch.tensor([0, 2])).sum(), logits),
    ):
        with pytest.raises(RuntimeError, match="has no second derivative; use forward_reference"):
            torch.autograd.grad(value, of, create_graph=True)
