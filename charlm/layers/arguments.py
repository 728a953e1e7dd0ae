"""Checks of the arguments of a stack: TypeError or ValueError, and what is allowed. `name` begins the message."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from charlm.layers.backend import Lookup
from charlm.layers.operators import check_ids
from charlm.native.operators import check_tensor


def order_of(input_size: int, *, batch_first: bool) -> str:
    """How an input tensor is read."""
    return f"[{'B, T' if batch_first else 'T, B'}, {input_size}]"


def check_input(name: str, x: Any, input_size: int, like: Tensor, *, batch_first: bool) -> tuple[int, int]:
    """T and B of an input for parameters like this one."""
    order = order_of(input_size, batch_first=batch_first)
    if isinstance(x, Lookup):
        check_tensor("ids of a lookup", x.ids_TB, None, torch.int64, like.device)
        V = input_size
        if x.table_VI is not None:
            V = len(x.table_VI)
            check_tensor("table of a lookup", x.table_VI, (V, input_size), like.dtype, like.device)
        if like.is_cpu:
            check_ids("ids of a lookup", x.ids_TB, V)
        shape = [*x.ids_TB.shape, input_size]
    elif isinstance(x, Tensor):
        dtype = like.dtype
        if x.is_floating_point() and torch.is_autocast_enabled("cpu" if like.is_cpu else "cuda"):
            dtype = x.dtype  # as in torch.nn: autocast converts the results of operators before these layers
        check_tensor(name, x, None, dtype, like.device)
        shape = list(x.shape)
    else:
        raise TypeError(
            f"{name}: found a {type(x).__name__}; allowed: a tensor {order}, and lengths_B for sequences of different "
            "lengths"
        )
    if len(shape) == 3 and shape[2] == input_size:
        T, B = shape[1::-1] if batch_first and isinstance(x, Tensor) else shape[:2]
        if T > 0:
            return T, B
    raise ValueError(f"{name}: found shape {shape}; allowed: {order} with T ≥ 1")


def check_lengths(name: str, lengths: Tensor | Sequence[int], T: int, B: int, device: torch.device) -> Tensor:
    """The lengths of B streams of at most T steps, as a tensor [B]."""
    lengths_B = torch.as_tensor(lengths, device=device)
    check_tensor(name, lengths_B, (B,), torch.int64, device)
    check_ids(name, lengths_B, T + 1)
    return lengths_B


def check_state(name: str, state: Any, names: Sequence[str], shape: tuple[int, ...], like: Tensor, order: str) -> None:
    """A state is a tuple of tensors of one shape, by name. order: of the input, see `order_of`."""
    if not isinstance(state, tuple | list) or len(state) != len(names):
        count = f" of {len(state)}" if isinstance(state, tuple | list) else ""
        listed = f"{names[0]}," if len(names) == 1 else ", ".join(names)
        raise TypeError(f"{name}: found a {type(state).__name__}{count}; allowed: a tuple ({listed}) of tensors")
    for one, tensor in zip(names, state, strict=True):
        check_tensor(f"{name} {one} of an input {order}", tensor, shape, like.dtype, like.device)
