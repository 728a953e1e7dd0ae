"""Checks of what `RecurrentLayers.forward` is called with: TypeError and ValueError for what does not fit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from charlm.layers.backend import LayerState, Lookup, RecurrentState
from charlm.native.structs import check_tensor

if TYPE_CHECKING:
    from charlm.layers.stack import RecurrentLayers


def check_input(layers: "RecurrentLayers", x: Tensor | Lookup) -> tuple[int, int]:
    """T and B of an input, which must be a tensor [T, B, I] with T ≥ 1 on the parameters' device, or a lookup."""
    like = next(layers.parameters())
    if isinstance(x, Lookup):
        ids, table = x
        check_tensor("ids of a lookup", ids, ids.shape, torch.int64, like.device)
        if table is not None:
            check_tensor("table of a lookup", table, (len(table), layers.input_size), like.dtype, like.device)
        shape, order = [*ids.shape, layers.input_size], "T, B"
    elif isinstance(x, Tensor):
        check_tensor(f"{layers.kind}: input", x, x.shape, x.dtype, like.device)
        shape, order = list(x.shape), _order(layers)
    else:
        raise TypeError(
            f"{layers.kind}: input is a {type(x).__name__}; allowed: a tensor [{_order(layers)}, {layers.input_size}], "
            "and lengths_B for sequences of different lengths"
        )
    sizes = dict(zip(order.split(", "), shape, strict=False))
    if len(shape) != 3 or sizes["T"] == 0 or shape[2] != layers.input_size:
        raise ValueError(f"{layers.kind}: input of shape {shape}; allowed: [{order}, {layers.input_size}] with T ≥ 1")
    return sizes["T"], sizes["B"]


def _order(layers: "RecurrentLayers") -> str:
    """The first two dimensions of an input tensor."""
    return "B, T" if layers.batch_first else "T, B"


def carry_of(layers: "RecurrentLayers", resets_TB: Tensor | None, steps: int, batch_size: int) -> Tensor | None:
    """`LayerCall.carry_TB` of these resets, which must be a bool tensor [T, B]."""
    if resets_TB is None:
        return None
    shape = [steps, batch_size]
    if resets_TB.dtype != torch.bool or list(resets_TB.shape) != shape:
        given = f"{resets_TB.dtype} of shape {list(resets_TB.shape)}"
        raise ValueError(f"{layers.kind}: resets are {given}; allowed: torch.bool of shape [T, B] = {shape}")
    return (~resets_TB).to(next(layers.parameters()).dtype)


def check_lengths(layers: "RecurrentLayers", lengths_B: Tensor | Sequence[int], steps: int, batch_size: int) -> Tensor:
    """The lengths as a tensor on the CPU; there must be one from 1 to T for each stream."""
    lengths = torch.as_tensor(lengths_B, device="cpu")
    is_whole = not (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool)
    fits = is_whole and list(lengths.shape) == [batch_size]
    if not fits or not ((lengths >= 1) & (lengths <= steps)).all():
        raise ValueError(
            f"{layers.kind}: lengths are {lengths.tolist()}; allowed: for each of {batch_size} streams a whole "
            f"number from 1 to {steps}, the steps of the input"
        )
    return lengths


def split_state(layers: "RecurrentLayers", state: RecurrentState | None, batch_size: int) -> list[LayerState]:
    """The state of each layer; `state` must be one [L, B, H] for each of the cell's states, or None for zeros."""
    if state is None:
        state = layers.zero_state(batch_size)
    like, names = next(layers.parameters()), ", ".join(layers.state_names)
    if not isinstance(state, tuple | list) or not all(isinstance(tensor, Tensor) for tensor in state):
        items = {type(item).__name__ for item in state} if isinstance(state, tuple | list) else ()
        given = " of ".join((type(state).__name__, *items))
        raise TypeError(f"{layers.kind}: state is a {given}; allowed: a tuple ({names}) of tensors [L, B, H]")
    shape = layers.num_layers, batch_size, layers.hidden_size
    expected = shape, like.dtype, like.device, torch.strided
    forms = [(tuple(tensor.shape), tensor.dtype, tensor.device, tensor.layout) for tensor in state]
    if forms != [expected] * len(layers.state_names):
        raise ValueError(
            f"{layers.kind}: state ({', '.join(map(_form_text, forms))}); allowed: ({names}), each [L, B, H] = "
            f"{_form_text(expected)}; the input is read as [{_order(layers)}, I], see batch_first"
        )
    return list(zip(*(tensor.unbind() for tensor in state), strict=True))


def _form_text(form: tuple[Sequence[int], torch.dtype, torch.device, torch.layout]) -> str:
    """Shape, dtype, device and layout of a tensor, e.g. "[1, 3, 8] float32 cpu"."""
    shape, dtype, device, layout = form
    text = f"{list(shape)} {str(dtype).removeprefix('torch.')} {device}"
    return text if layout == torch.strided else f"{text} {layout}"
