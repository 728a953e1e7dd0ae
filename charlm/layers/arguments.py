"""Checks of what `RecurrentLayers.forward` is called with: TypeError and ValueError for what does not fit."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from charlm.layers.backend import LayerState, Lookup, RecurrentState
from charlm.native.structs import check_tensor


def check_input(kind: str, x: Tensor | Lookup, input_size: int, like: Tensor, order: str) -> tuple[int, int]:
    """T and B of an input, which must be a tensor [T, B, I] with T ≥ 1 on the device of `like`, or a lookup.

    order: the first two dimensions of a tensor, "T, B" or "B, T".
    """
    if isinstance(x, Lookup):
        ids, table = x
        check_tensor("ids of a lookup", ids, ids.shape, torch.int64, like.device)
        if table is not None:
            check_tensor("table of a lookup", table, (len(table), input_size), like.dtype, like.device)
        shape, order = [*ids.shape, input_size], "T, B"
    elif isinstance(x, Tensor):
        # As in torch.nn: autocast converts the results of operators before these layers.
        is_converted = torch.is_autocast_enabled("cpu" if like.is_cpu else "cuda") and x.is_floating_point()
        check_tensor(f"{kind}: input", x, x.shape, x.dtype if is_converted else like.dtype, like.device)
        shape = list(x.shape)
    else:
        raise TypeError(
            f"{kind}: input is a {type(x).__name__}; allowed: a tensor [{order}, {input_size}], "
            "and lengths_B for sequences of different lengths"
        )
    sizes = dict(zip(order.split(", "), shape, strict=False))
    if len(shape) != 3 or sizes["T"] == 0 or shape[2] != input_size:
        raise ValueError(f"{kind}: input of shape {shape}; allowed: [{order}, {input_size}] with T ≥ 1")
    return sizes["T"], sizes["B"]


def carry_of(kind: str, resets_TB: Tensor, steps: int, batch_size: int, dtype: torch.dtype) -> Tensor:
    """`LayerCall.carry_TB` of these resets, which must be a bool tensor [T, B]."""
    form = (resets_TB.dtype, *resets_TB.shape) if isinstance(resets_TB, Tensor) else ()
    if form != (torch.bool, steps, batch_size):
        given = f"{form[0]} of shape {list(form[1:])}" if form else f"a {type(resets_TB).__name__}"
        raise ValueError(f"{kind}: resets are {given}; allowed: torch.bool of shape [T, B] = {[steps, batch_size]}")
    return (~resets_TB).to(dtype)


def check_lengths(kind: str, lengths_B: Tensor | Sequence[int], steps: int, batch_size: int) -> Tensor:
    """The lengths as a tensor on the CPU; there must be one from 1 to T for each stream."""
    lengths: Any = lengths_B.tolist() if hasattr(lengths_B, "tolist") else lengths_B  # type: ignore[union-attr]
    is_list = isinstance(lengths, Sequence) and len(lengths) == batch_size
    counts = [each for each in lengths if isinstance(each, Integral) and type(each) is not bool] if is_list else []
    if len(counts) != batch_size or not all(1 <= int(count) <= steps for count in counts):
        raise ValueError(
            f"{kind}: lengths are {lengths!r:.80}; allowed: for each of {batch_size} streams a whole "
            f"number from 1 to {steps}, the steps of the input"
        )
    return torch.tensor(lengths)


def split_state(
    kind: str, state: RecurrentState, states: Sequence[str], shape: tuple[int, int, int], like: Tensor, order: str
) -> list[LayerState]:
    """The state of each layer; there must be a tensor of this shape, [L, B, H], for each of the cell's states."""
    names = ", ".join(states)
    if not isinstance(state, tuple | list) or not all(isinstance(tensor, Tensor) for tensor in state):
        items = {type(item).__name__ for item in state} if isinstance(state, tuple | list) else ()
        given = " of ".join((type(state).__name__, *items))
        raise TypeError(f"{kind}: state is a {given}; allowed: a tuple ({names}) of tensors [L, B, H]")
    expected = shape, like.dtype, like.device, torch.strided
    forms = [(tuple(tensor.shape), tensor.dtype, tensor.device, tensor.layout) for tensor in state]
    if forms != [expected] * len(states):
        raise ValueError(
            f"{kind}: state ({', '.join(map(_form_text, forms))}); allowed: ({names}), each [L, B, H] = "
            f"{_form_text(expected)}; the input is read as [{order}, I], see batch_first"
        )
    return list(zip(*(tensor.unbind() for tensor in state), strict=True))


def _form_text(form: tuple[Sequence[int], torch.dtype, torch.device, torch.layout]) -> str:
    """Shape, dtype, device and layout of a tensor, e.g. "[1, 3, 8] float32 cpu"."""
    shape, dtype, device, layout = form
    text = f"{list(shape)} {str(dtype).removeprefix('torch.')} {device}"
    return text if layout == torch.strided else f"{text} {layout}"
