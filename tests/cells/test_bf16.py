"""Training in bfloat16: the kernels round the operands of products and nothing else; states stay float32."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from charlm.cells.derivative import passes_of
from tests.cells.measure import (
    CASES,
    Case,
    Run,
    by_kernel,
    in_dtype_of,
    random_input,
    random_state,
    rounded,
    run,
    seeded,
)
from tests.pairwise import pairwise

pytestmark = pytest.mark.usefixtures("needs_kernels")


def autocast(forward: Callable[..., Any]) -> Callable[..., Any]:
    """`forward` in bfloat16; as in training, the backward pass is outside."""

    def call(*args: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*args)

    return call


def test_the_reference_in_bfloat16_is_close_to_float32(case):
    stack = case.build(6, 17, 2).float()
    x, state = random_input(stack, 8, 3).float(), random_state(stack, 3)
    forward = stack.forward_reference
    # bfloat16 rounds to 2⁻⁹ = 0.2%; eight steps of two layers gather up to ten of these, twice as many
    # with layer normalization. Where a sum near 0 rounds across relu's kink, a whole gradient goes.
    tolerance = 0.3 if "relu" in str(case) else 0.05
    found, expected = run(autocast(forward), stack, x, state), run(forward, stack, x, state)
    for name, tensor in expected.items():
        assert found[name].dtype == torch.float32, name
        assert (found[name] - tensor).norm() <= tolerance * tensor.norm() + 1e-6, name


class RoundedProduct(torch.autograd.Function):
    """x w of operands rounded to bfloat16, forwards and backwards, in the dtype they have."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return rounded(x) @ rounded(w)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, w = ctx.saved_tensors
        dw = rounded(x).flatten(0, -2).t() @ rounded(dy).flatten(0, -2)
        return rounded(dy) @ rounded(w).t(), dw


class RoundedProducts(TorchFunctionMode):
    """The reference's products of operands rounded to bfloat16."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.addmm:
            return args[0] + RoundedProduct.apply(*args[1:])
        if function is torch.nn.functional.linear:
            product = RoundedProduct.apply(args[0], args[1].t())
            return product if args[2] is None else product + args[2]
        return function(*args, **kwargs or {})


@pytest.mark.usefixtures("poison")
# B, H: rows that fill no tile of 16, or end just behind one, or behind a pair of them; more than two chains of sums.
@pairwise(
    case=CASES,
    size=[(20, 33), (1, 5), (17, 70), (33, 33), (47, 64), (3, 270)],
    options=[{}, {"state": 0.4}, {"zoneout": 0.3}],
    threads=[1, 3],
)
def test_bf16_is_float32_of_rounded_operands(case, size, options, threads):
    torch.set_num_threads(threads)
    assert_operands_are_rounded(case, *size, options=options)


def assert_operands_are_rounded(case: Case, batch_size, hidden_size, options, forward_of: Any = by_kernel, layers=2):
    """The errors of `forward_of(stack)` in bfloat16 are those of rounding the operands of its products."""
    stack = case.build(7, hidden_size, layers, variational=True, **options)
    with torch.no_grad():
        # An operand that is rounded the other way must not decide the outcome. With the weights of `build` the chain of
        # products in four steps of an RHN or a Mogrifier of 270 units would grow such a difference.
        for layer in range(stack.num_layers):
            for name in {product.name for product in passes_of(stack.forms[layer].program).products}:
                stack.get_parameter(f"{name}_l{layer}").mul_(min(1.0, 2 / hidden_size**0.5))
    x, state = random_input(stack, 4, batch_size), random_state(stack, batch_size)

    def results(forward: Any) -> Run:
        return run(seeded(forward), stack, *in_dtype_of(stack, x, state))

    with RoundedProducts():
        truth = results(stack.forward_reference)
        stack = stack.float()
        reference = results(stack.forward_reference)
    in_float32, in_bf16 = results(forward_of(stack)), results(autocast(forward_of(stack)))

    def error(found: Run, name: str) -> float:
        return float((found[name] - truth[name]).norm())

    for name in truth:
        assert in_bf16[name].dtype == torch.float32, name
        # A sum near a tie is seldom rounded to bfloat16 alike in float32 and float64, by the reference in float32 too.
        assert error(in_bf16, name) <= max(0.3 * error(in_float32, name), 2 * error(reference, name)), name


def test_autocast_to_float16_has_gradients():
    """oneDNN's LSTM has none."""
    stack, x = Case("lstm").start(8, 5), torch.randn(4, 2, 8)
    with torch.autocast("cpu", torch.float16):
        y, _ = stack(x)
    y.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in stack.parameters())
