"""The derived passes of every cell in float64: what autograd finds of the reference loop, to rounding."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from charlm.cells import CELLS, Cell
from charlm.gpu.recurrence import TensorRecurrence
from charlm.layers import Backend, RecurrentLayers
from charlm.layers.backend import LayerCall, LayerState
from charlm.layers.driven import driven_layer
from charlm.layers.reference import reference_layer
from tests.cells.measure import CASES, Case, Run, assert_equal_runs
from tests.cells.programs import cells
from tests.pairwise import pairwise

MORE = [
    Case("mingru", {"positive": True}),
    Case("minlstm", {"positive": True}),
    Case("sru", {"normalize": True}),
    Case("mogrifier", {"rank": 3}),
    Case("mogrifier", {"rounds": 0}),
]
SIZES = [(6, 3, 5, 7), (1, 1, 1, 1), (4, 2, 7, 7), (5, 4, 11, 3)]  # T, B, inputs, H
MASKS = [("mask", "zoneout", "carry"), (), ("zoneout",), ("carry",), ("mask",)]

Layer = Callable[[Tensor, LayerCall], tuple[Tensor, LayerState]]


@pytest.mark.usefixtures("poison")
@pairwise(case=[*CASES, *MORE], size=SIZES, masks=MASKS)
def test_both_passes(case: Case, size: tuple[int, ...], masks: tuple[str, ...]) -> None:
    assert_derivative(CELLS[case.kind](hidden=size[-1], **case.options), size, masks)


@settings(max_examples=100, deadline=None)
@given(cells(), st.sampled_from(SIZES), st.sampled_from(MASKS))
def test_both_passes_of_random_cells(cell: Cell, size: tuple[int, ...], masks: tuple[str, ...]) -> None:
    assert_derivative(cell.model_copy(update={"hidden": size[-1]}), size, masks)


def assert_derivative(cell: Cell, size: tuple[int, ...], masks: tuple[str, ...]) -> None:
    x, call = random_call(cell, size, masks)
    expected = results(Backend("reference", reference_layer).compute, x, call)
    assert_equal_runs(results(plain, x, call), expected)


def plain(x: Tensor, call: LayerCall) -> tuple[Tensor, LayerState]:
    """The driver in PyTorch's operators."""
    return driven_layer(TensorRecurrence(), x.shape[-1], None, x, call)


def random_call(
    cell: Cell, size: tuple[int, ...], masks: tuple[str, ...], dtype: torch.dtype = torch.float64
) -> tuple[Tensor, LayerCall]:
    """An input that is not contiguous, and a call with random parameters, and states that two steps from 0 reach."""
    T, B, inputs, H = size
    S = len(cell.states)
    stack = RecurrentLayers(cell, inputs).to(dtype)
    drawn = [parameter.detach() + 0.2 * torch.randn_like(parameter) for parameter in stack.parameters()]
    named = dict(zip(stack.parameter_shapes(0), (one.requires_grad_() for one in drawn), strict=True))
    call = LayerCall(stack.passes(0), named, (torch.zeros(B, H, dtype=dtype),) * S)
    _, state = reference_layer(2 * torch.randn(2, B, inputs, dtype=dtype), call)
    zoneout_TBS = torch.rand(*((1, 1) if T % 2 else (T, B)), S * H, dtype=dtype)
    for name, share in zip(cell.states, zoneout_TBS.split(H, dim=2), strict=True):
        share *= name not in cell.internal
    drops = {"mask": torch.rand(B, H, dtype=dtype), "zoneout": zoneout_TBS, "carry": (torch.rand(T, B) < 0.6).to(dtype)}
    mask, zoneout, carry = (drops[name] if name in masks else None for name in ("mask", "zoneout", "carry"))
    first = tuple(tensor.detach().requires_grad_() for tensor in state)
    call = call._replace(state=first, mask_BH=mask, zoneout_TBS=zoneout, carry_TB=carry)
    return torch.randn(B, T, inputs, dtype=dtype).transpose(0, 1).requires_grad_(), call


def results(layer: Layer, x: Tensor, call: LayerCall) -> Run:
    """Outputs, last states, and all gradients under random gradients of both."""
    y, last = layer(x, call)
    states = call.passes.split.program.states
    outputs = {"y": y, **dict(zip(states, last, strict=True))}
    generator = torch.Generator().manual_seed(0)
    losses = [(torch.randn(one.shape, generator=generator) * one).sum() for one in outputs.values()]
    inputs = {"x": x, **call.parameters}
    inputs |= {f"{name}0": tensor for name, tensor in zip(states, call.state, strict=True)}
    gradients = torch.autograd.grad(torch.stack(losses).sum(), list(inputs.values()), materialize_grads=True)
    found = outputs | {f"d{name}": one for name, one in zip(inputs, gradients, strict=True)}
    return {name: tensor.detach() for name, tensor in found.items()}
