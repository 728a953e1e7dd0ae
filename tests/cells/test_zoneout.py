"""The LSTM's zoneout against Krueger et al. 2017 (arXiv:1606.01305), written out once more, here in tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from charlm.cells import RecurrentBase, dropout_mask
from tests.cells.measure import (
    Case,
    Run,
    as_tuple,
    assert_as_accurate,
    assert_equal_runs,
    random_input,
    random_state,
    run,
)

T, B, H = 5, 3, 20
P = 0.4


def by_the_paper(stack: RecurrentBase, kept: Tensor, x: Tensor, state: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """One layer; kept [T, B, 2H], of h and c."""
    p = {name.removesuffix("_l0"): parameter for name, parameter in stack.named_parameters()}

    def normalized(a: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        deviation = a - a.mean(-1, keepdim=True)
        return gain * deviation / (deviation.square().mean(-1, keepdim=True) + 1e-5).sqrt() + bias

    h, c = (tensor[0] for tensor in state)
    y = []
    for t in range(T):
        maps = x[t] @ p["weight_ih"].t() + p["bias_ih"] + h @ p["weight_hh"].t() + p["bias_hh"]
        gates = [maps[:, k * H : (k + 1) * H] for k in range(4)]
        if "weight_ln_gates" in p:
            gates = [normalized(gates[k], p["weight_ln_gates"][k], p["bias_ln_gates"][k]) for k in range(4)]
        i, f, o = (1 / (1 + torch.exp(-gates[k])) for k in (0, 1, 3))
        new_c = f * c + i * torch.tanh(gates[2])
        seen = normalized(new_c, p["weight_ln_cell"], p["bias_ln_cell"]) if "weight_ln_cell" in p else new_c
        new_h = o * torch.tanh(seen)
        d_h, d_c = kept[t, :, :H], kept[t, :, H:]
        h, c = d_h * h + (1 - d_h) * new_h, d_c * c + (1 - d_c) * new_c
        y.append(h)
    return torch.stack(y), (h[None], c[None])


@pytest.fixture(params=[False, True], ids=["plain", "layer norm"])
def stack(request: pytest.FixtureRequest) -> RecurrentBase:
    return Case("lstm", {"layer_norm": request.param}).build(4, H, zoneout=P)


@pytest.fixture(params=[True, False], ids=["training", "evaluation"])
def truth(request: pytest.FixtureRequest, stack: RecurrentBase) -> tuple[Callable[..., Run], Run]:
    """How to run the stack in the precision that it has by then, and what it is held to."""
    stack.train(request.param)
    x, state = random_input(stack, T, B), random_state(stack, B)
    kept = torch.full((T, B, 2 * H), P, dtype=torch.float64)
    if stack.training:
        torch.manual_seed(1)
        kept = (dropout_mask((T, B, 2 * H), P, like=x) == 0).double()
        assert 0.3 < kept.mean() < 0.5

    def found(forward: Callable[..., Any]) -> Run:
        dtype = next(stack.parameters()).dtype
        torch.manual_seed(1)
        return run(forward, stack, x.to(dtype), tuple(tensor.to(dtype) for tensor in as_tuple(state)))

    return found, run(lambda *inputs: by_the_paper(stack, kept, *inputs), stack, x, state)


def test_h_is_made_of_the_new_c_before_both_are_mixed(
    stack: RecurrentBase, truth: tuple[Callable[..., Run], Run]
) -> None:
    found, by_paper = truth
    for forward in (stack, stack.forward_reference):
        assert_equal_runs(found(forward), by_paper, tolerance=1e-11)


@pytest.mark.usefixtures("needs_kernels")
def test_the_kernel_does_likewise(stack: RecurrentBase, truth: tuple[Callable[..., Run], Run]) -> None:
    found, by_paper = truth
    stack.float()
    assert "fused CPU kernel" in stack.select_backend("cpu").description
    assert_as_accurate([found(stack)], [found(stack.forward_reference)], [by_paper])
