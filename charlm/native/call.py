"""Calls kernels with tensors."""

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from charlm.native.build import KernelError, Library, load
from charlm.native.structs import Struct, Value

_CPU = torch.device("cpu")


class Kernel(Library):
    """The functions of a C++ file; each takes a pointer to a struct, the first of `structs` unless said otherwise.

    Args:
        source: the file.
        structs: default: the file's `struct Arguments`.
        name: the library's name; default: the file's.
        text: C++ that follows the file.
    """

    def __init__(self, source: Path, structs: tuple[Struct, ...] = (), name: str = "", text: str = "") -> None:
        super().__init__(source, structs or (Struct(source),), name or source.stem, text)

    def check(self) -> None:
        """Compile the kernel at first use and load it; KernelError if that fails."""
        load(self)

    def works(self) -> bool:
        """Whether the kernel compiles and loads."""
        try:
            self.check()
        except KernelError:
            return False
        return True

    def __call__(self, function: str, **values: Value) -> None:
        """Call a function of the file with these values; see `Struct.fill`."""
        self.call(function, self.structs[0].fill(**values))

    def call(self, function: str, struct: ctypes.Structure) -> None:
        """Call a function of the file with a filled struct."""
        (library,) = load(self)
        getattr(library, function)(ctypes.byref(struct))


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a backward pass that calls a kernel: RuntimeError if autograd would differentiate it again."""

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Tensor) -> Any:
        # Gradients are enabled here only if the backward pass builds a graph of its own (create_graph=True).
        if torch.is_grad_enabled():
            raise RuntimeError("charlm's own backward pass has no second derivative; use forward_reference")
        return backward(ctx, *gradients)

    return checked


def autocasts_to_bf16(device: torch.device = _CPU) -> bool:
    """Whether autocast asks for products in bfloat16 on this device; sums are float32."""
    name = _autocast_name(device)
    return torch.is_autocast_enabled(name) and torch.get_autocast_dtype(name) == torch.bfloat16


def without_autocast(device: torch.device) -> torch.autocast:
    """A context in which autocast does not round operands and results of torch's products."""
    return torch.autocast(_autocast_name(device), enabled=False)


def _autocast_name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else "cuda"
