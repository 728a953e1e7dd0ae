"""The structs through which Python calls C++: parsed from the C++ text."""

import ctypes
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Value: TypeAlias = "int | float | Tensor | Sequence[Tensor | None] | None"
"""A value for a field of a struct; a sequence for a table of pointers."""

_NUMBERS = {"Index": ctypes.c_ssize_t, "double": ctypes.c_double}
_POINTEES = {"Index*": "int64", "float*": "float32", "double*": "float64"}
"""The names of dtypes."""


class Struct:
    """A struct of a C++ file: numbers and pointers. Its fields end at the first empty line in the struct."""

    def __init__(self, file: Path, name: str = "Arguments") -> None:
        self.file, self.name = file, name

    @functools.cached_property
    def _parsed(self) -> tuple[type[ctypes.Structure], dict[str, str | None]]:
        """The struct, and the names of its pointers' dtypes."""
        text = self.file.read_text(encoding="utf-8").split(f"struct {self.name} {{\n", 1)[1]
        declarations = re.split(r"\n\n|\n};", text, maxsplit=1)[0]
        fields: list[tuple[str, type]] = []
        pointees: dict[str, str | None] = {}
        for kind, names in re.findall(r"^ *([\w: *]*?) (\w+(?:, \w+)*);", declarations, re.MULTILINE):
            for field in names.split(", "):
                fields.append((field, ctypes.c_void_p if "*" in kind else _NUMBERS[kind]))
                pointees[field] = _POINTEES.get(kind.removeprefix("const "))
        return type(self.name, (ctypes.Structure,), {"_fields_": fields}), pointees

    @functools.cached_property
    def _dtypes(self) -> "dict[str, torch.dtype | None]":
        """What pointers to numbers point to; None for other fields."""
        import torch  # not above: wheels are built without it

        _, pointees = self._parsed
        return {field: getattr(torch, name) if name else None for field, name in pointees.items()}

    def fill(self, **values: Value) -> ctypes.Structure:
        """The struct with these values. `threads` defaults to torch's number; other fields to 0 or null.

        A pointer takes an address or a tensor; a table of float pointers takes a sequence of tensors. The struct keeps
        tensors alive. A bool becomes an integer. ValueError for a tensor of another type than the pointer's, or not
        contiguous on the CPU. The caller checks its shape.
        """
        import torch

        struct, _ = self._parsed
        dtypes = self._dtypes
        assert values.keys() <= dtypes.keys(), values.keys()
        filled = struct(threads=torch.get_num_threads())
        tables = []
        for field, value in values.items():
            if isinstance(value, (int, float)):
                setattr(filled, field, value)
            elif isinstance(value, torch.Tensor):
                setattr(filled, field, _address(field, value, dtypes[field]))
            elif value:
                addresses = [None if tensor is None else _address(field, tensor, torch.float32) for tensor in value]
                tables.append((ctypes.c_void_p * len(addresses))(*addresses))
                setattr(filled, field, ctypes.addressof(tables[-1]))
        filled.kept_alive = values, tables
        return filled


def _address(field: str, tensor: "Tensor", dtype: "torch.dtype | None") -> int:
    import torch

    is_plain = tensor.layout == torch.strided and tensor.is_contiguous() and not tensor.is_neg()
    if not (is_plain and tensor.is_cpu and tensor.dtype == dtype):
        form = "a contiguous tensor" if is_plain else "a tensor that is not contiguous"
        raise ValueError(
            f"{field}: found {form} of {tensor.dtype} on {tensor.device}; allowed: a contiguous one of {dtype} on cpu"
        )
    return address(field, tensor)


def address(name: str, tensor: "Tensor") -> int:
    """Where its numbers begin. ValueError for a tensor that has none in memory, such as torch's FakeTensor."""
    found = tensor.data_ptr()
    if not found and tensor.numel():
        raise ValueError(f"{name}: found a tensor without data; allowed: a tensor with data")
    return found
