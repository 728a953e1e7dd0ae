"""Calls kernels with tensors."""

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
"""A value for a field of a struct."""


class Kernel:
    """The functions of a C++ file. Each takes a pointer to the file's `struct Arguments`.

    The struct is defined only there: Python parses its fields from the C++ text.
    """

    def __init__(self, source: Path) -> None:
        self.source = source

    def check(self) -> None:
        """Compile the kernel at first use and load it; KernelError if that fails."""
        load(self.source)

    def works(self) -> bool:
        """Whether the kernel compiles and loads."""
        try:
            self.check()
        except KernelError:
            return False
        return True

    def __call__(self, function: str, **values: Value) -> None:
        """Call a function of the file with these values in its `struct Arguments`; see `fill`."""
        self.call(function, self.arguments(**values))

    def call(self, function: str, struct: ctypes.Structure) -> None:
        """Call a function of the file with a filled struct."""
        (library,) = load(self.source)
        getattr(library, function)(ctypes.byref(struct))

    def arguments(self, **values: Value) -> ctypes.Structure:
        """The file's `struct Arguments` with these values; see `fill`."""
        return fill(self.source, "Arguments", **values)


def fill(source: Path, name: str, **values: Value) -> ctypes.Structure:
    """A struct of a C++ file, filled with values. `threads` defaults to torch's number; other fields to 0 or null.

    A pointer field takes an address or a tensor. The tensor must have the pointer's type, be contiguous and on the
    CPU, and outlive the struct, which does not keep it alive. A bool becomes an integer.
    """
    struct, pointees = _struct(source, name)
    assert values.keys() <= {field[0] for field in struct._fields_}, values.keys()
    fields = {
        field: _address(value, pointees[field]) if isinstance(value, Tensor) else value
        for field, value in values.items()
    }
    return struct(**{"threads": torch.get_num_threads()} | fields)


def zoneout_fields(kept_TBS: Tensor | None) -> dict[str, Value]:
    """The fields of a kernel's Arguments for zoneout; see `zone_out` in cells/base.py."""
    return {} if kept_TBS is None else {"kept": kept_TBS, "kept_rows": kept_TBS.shape[0] * kept_TBS.shape[1]}


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a backward pass that calls a kernel: RuntimeError if autograd would differentiate it again."""

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Tensor) -> Any:
        # Gradients are enabled here only if the backward pass builds a graph of its own (create_graph=True).
        if torch.is_grad_enabled():
            raise RuntimeError("a fused CPU kernel has no second derivative; use forward_reference")
        return backward(ctx, *gradients)

    return checked


def operands(batch_size: int, width: int, like: Tensor, *, copied: bool) -> Tensor | None:
    """Two scratch buffers [B, padded width] for copies that products read; None if they need no copies.

    Room for float32, or for bfloat16 padded to a multiple of 32 elements. The padding must be zero.
    """
    return like.new_zeros(2, batch_size, width + 16) if copied else None


def autocasts_to_bf16() -> bool:
    """Whether autocast asks for products in bfloat16 on the CPU; sums are float32."""
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


_NUMBERS = {"Index": ctypes.c_ssize_t, "double": ctypes.c_double}
_POINTEES = {"Index*": torch.int64, "float*": torch.float32, "double*": torch.float64}


@functools.cache
def _struct(source: Path, name: str) -> tuple[type[ctypes.Structure], dict[str, torch.dtype | None]]:
    """A struct of a C++ file, and the dtypes of its pointers. Fields end at the first empty line in the struct."""
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
