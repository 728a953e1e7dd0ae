"""Calls of kernels with tensors."""

import ctypes
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from charlm.native.build import KernelError, load

Value = int | float | Tensor | None
"""What a field of a struct can be given."""


class Kernel:
    """The functions of a C++ file, each of which takes a pointer to the file's `struct Arguments`.

    The struct is defined there alone: its fields are read from its text.
    """

    def __init__(self, source: Path) -> None:
        self.source = source

    def check(self) -> None:
        """Compile and load it, or raise KernelError."""
        load(self.source)

    def works(self) -> bool:
        """Whether `check` passes."""
        try:
            self.check()
        except KernelError:
            return False
        return True

    def __call__(self, function: str, **values: Value) -> None:
        """Call a function of the file with `struct Arguments` of these values; see `fill`."""
        self.call(function, self.arguments(**values))

    def call(self, function: str, struct: ctypes.Structure) -> None:
        """Call a function of the file with a struct."""
        (library,) = load(self.source)
        getattr(library, function)(ctypes.byref(struct))

    def arguments(self, **values: Value) -> ctypes.Structure:
        """`struct Arguments` of these values; see `fill`."""
        return fill(self.source, "Arguments", **values)


def fill(source: Path, name: str, **values: Value) -> ctypes.Structure:
    """A struct of a C++ file: fields without a value are 0 or null; `threads`, if not given, is torch's number.

    A pointer takes an address, or a tensor of its type, contiguous and on the CPU, which the struct does not keep
    alive. A bool is an integer.
    """
    struct, pointees = _struct(source, name)
    assert values.keys() <= {field[0] for field in struct._fields_}, values.keys()
    fields = {
        field: _address(value, pointees[field]) if isinstance(value, Tensor) else value
        for field, value in values.items()
    }
    return struct(**{"threads": torch.get_num_threads()} | fields)


def zoneout_fields(kept_TBS: Tensor | None) -> dict[str, Value]:
    """The fields of a kernel's Arguments that say what units keep; see `zone_out` in base.py."""
    return {} if kept_TBS is None else {"kept": kept_TBS, "kept_rows": kept_TBS.shape[0] * kept_TBS.shape[1]}


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Of an autograd function's backward pass by a kernel: RuntimeError where it is to be differentiated again."""

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Tensor) -> Any:
        # Autograd has gradients on in a backward pass that makes a graph of its own, and there alone.
        if torch.is_grad_enabled():
            raise RuntimeError("a fused CPU kernel has no second derivative; use forward_reference")
        return backward(ctx, *gradients)

    return checked


def operands(batch_size: int, width: int, like: Tensor, *, copied: bool) -> Tensor | None:
    """Scratch for twice [B, width] that products read, if they read copies; bfloat16's padding must be zero.

    That is to a multiple of 32 elements, half as long as those of `like`.
    """
    return like.new_zeros(2, batch_size, width + 16) if copied else None


def autocasts_to_bf16() -> bool:
    """Whether products on the CPU are to be taken in bfloat16 now, with sums in float32."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


_NUMBERS = {"Index": ctypes.c_ssize_t, "double": ctypes.c_double}
_POINTEES = {"Index*": torch.int64, "float*": torch.float32, "double*": torch.float64}


@functools.cache
def _struct(source: Path, name: str) -> tuple[type[ctypes.Structure], dict[str, torch.dtype | None]]:
    """A struct of a C++ file, and what its pointers point to; its fields are declared before its first empty line."""
    text = source.read_text(encoding="utf-8").split(f"struct {name} {{\n", 1)[1]
    declarations = re.split(r"\n\n|\n};", text, maxsplit=1)[0]
    fields: list[tuple[str, type]] = []
    pointees: dict[str, torch.dtype | None] = {}
    for kind, names in re.findall(r"^ *([\w: *]*?) (\w+(?:, \w+)*);", declarations, re.MULTILINE):
        for field in names.split(", "):
            fields.append((field, ctypes.c_void_p if "*" in kind else _NUMBERS[kind]))
            pointees[field] = _POINTEES.get(kind.removeprefix("const "))
    return type(name, (ctypes.Structure,), {"_fields_": fields}), pointees


def _address(tensor: Tensor, dtype: torch.dtype | None) -> int:
    assert tensor.device.type == "cpu", tensor.device
    assert tensor.dtype == dtype, (tensor.dtype, dtype)
    assert tensor.is_contiguous(), tensor.stride()
    return tensor.data_ptr()
