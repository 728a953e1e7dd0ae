"""The loop with its own backward pass, which GPUs use, held to the reference on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from charlm.layers import Lookup
from charlm.layers.torch_operator import has_operator
from tests.cells.measure import (
    CASES,
    Case,
    Run,
    assert_as_accurate,
    assert_equal_runs,
    in_dtype_of,
    own,
    random_input,
    random_state,
    run,
)
from tests.cells.test_bf16 import assert_operands_are_rounded
from tests.pairwise import pairwise

# T, B, I, H, L; the first is the one of --quick.
SIZES = [(6, 3, 5, 17, 2), (1, 1, 1, 1, 1), (5, 4, 33, 40, 1), (3, 1, 2, 7, 3)]
OPTIONS: list[dict[str, float]] = [
    {"state_dropout": 0.4, "weight_dropout": 0.2, "zoneout": 0.3},
    {},
    {"zoneout": 0.3},
]


def seeded(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` with the same masks at every call."""

    def call(*args: Any) -> Any:
        torch.manual_seed(1)
        return forward(*args)

    return call


@pytest.mark.usefixtures("poison")
@pairwise(case=CASES, size=SIZES, options=OPTIONS, training=[True, False])
def test_it_computes_what_the_reference_does(
    case: Case, size: tuple[int, ...], options: dict[str, float], training: bool
) -> None:
    steps, batch_size, input_size, hidden_size, num_layers = size
    stack = case.build(input_size, hidden_size, num_layers, **options).train(training)
    x, state = random_input(stack, steps, batch_size), random_state(stack, batch_size)
    expected = run(seeded(stack.forward_reference), stack, x, state)
    assert_equal_runs(run(seeded(own(stack)), stack, x, state), expected, tolerance=1e-11)
    with torch.no_grad():
        y, _ = seeded(own(stack))(x, state)
    torch.testing.assert_close(y, expected["y"], rtol=0, atol=1e-11)


@pairwise(case=CASES, size=SIZES)
def test_it_errs_no_more_than_the_reference(case: Case, size: tuple[int, ...]) -> None:
    steps, batch_size, input_size, hidden_size, num_layers = size
    stack = case.build(input_size, hidden_size, num_layers)
    inputs = [(random_input(stack, steps, batch_size), random_state(stack, batch_size)) for _ in range(3)]

    def runs(forward: Callable[..., Any]) -> list[Run]:
        return [run(forward, stack, *in_dtype_of(stack, *pair)) for pair in inputs]

    truth = runs(stack.forward_reference)
    stack = stack.float()
    assert_as_accurate(runs(own(stack)), runs(stack.forward_reference), truth)


@pytest.mark.parametrize("one_hot", [False, True])
def test_lookup(case: Case, one_hot: bool) -> None:
    stack = case.build(6, 9, 2)
    state = random_state(stack, 4)
    for V in (6,) if one_hot else (3, 50):
        ids, table = torch.randint(V, (5, 4)), torch.randn(V, 6, dtype=torch.float64, requires_grad=True)

        def found(forward: Callable[..., Any], ids: Tensor = ids, table: Tensor = table) -> Run:
            y, _ = forward(Lookup(ids, None if one_hot else table), state)
            names = dict(stack.named_parameters()) | ({} if one_hot else {"table": table})
            gradients = torch.autograd.grad(y.square().sum(), list(names.values()))
            return {"y": y.detach()} | dict(zip(names, gradients, strict=True))

        assert_equal_runs(found(own(stack)), found(stack.forward_reference), tolerance=1e-11)


@pairwise(case=CASES, batch_size=[3, 20], options=OPTIONS)
def test_bf16_rounds_the_operands_of_products_and_nothing_else(
    case: Case, batch_size: int, options: dict[str, float]
) -> None:
    assert_operands_are_rounded(case, batch_size, 33, options, own)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_runs_where_no_number_can_be_read(case: Case, options: dict[str, float]) -> None:
    """On the meta device, whose tensors have no values: what a GPU would have to wait for raises."""
    stack = case.build(5, 17, 2, **options).float().to("meta")
    x, state = random_input(stack, 3, 2).float().to("meta"), stack.zero_state(2)
    assert ("own backward pass" in stack.select_backend("meta").description) == (
        bool(options) or not has_operator(stack.cell) or bool(case.options.get("layer_norm"))
    )
    found = run(own(stack), stack, x, state)
    assert all(tensor.device.type == "meta" for tensor in found.values())
