"""The loop over a window on the CPU, in both directions (recurrence.cpp), in float32.

Its C++ is recurrence.h, recurrence.cpp, and a text that charlm/cells/cpp.py writes for each cell.
"""

import ctypes
import functools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from charlm.cells.cpp import norm_counts
from charlm.cells.passes import Passes
from charlm.cells.window import Gradients, Window
from charlm.native.compiler import Kernel
from charlm.native.kernels import kernel_of_passes, variants_of
from charlm.native.loading import run


class CpuDriver:
    """Computes loops with these passes, see `both_passes`."""

    padding = 16  # the largest W of vector.h

    def __init__(self, name: str, general_and_square: tuple[Passes | None, ...]) -> None:
        self._of_kernel = name, general_and_square
        self._splits = [passes.split for passes in variants_of(general_and_square)]
        self._variants: dict[Passes, int] = {}
        """By identity: comparing whole programs takes as long as a small layer."""

    @functools.cached_property
    def kernel(self) -> Kernel:
        """KernelError if the passes are too long for one."""
        return kernel_of_passes(*self._of_kernel)

    def forward(self, window: Window) -> None:
        widths = [window.units(operand.size) for operand in window.passes.operands]
        arguments = self.arguments(window, **scratch(window, widths))
        run(self.kernel, "recurrence_forward", arguments)

    def backward(self, window: Window, gradients: Gradients) -> None:
        widths = [product.gates * window.units(product.size) for product in window.passes.products]
        arguments = self.arguments(window, **vars(gradients), **scratch(window, widths))
        run(self.kernel, "recurrence_backward", arguments)

    def arguments(self, window: Window, **more: Tensor | Sequence[Tensor | None]) -> ctypes.Structure:
        """The struct `Arguments` of a call; `more` fields replace those of the window."""
        fields = vars(window) | more
        del fields["passes"], fields["given"]
        if window.passes not in self._variants:
            self._variants[window.passes] = self._splits.index(window.passes.split)
        strides = []
        for tensor in window.given:
            T, B, n = tensor.shape
            strides.append([B * n if T > 1 else 0, n if B > 1 else 0])
        given = {"givens": window.given, "given_strides": torch.tensor(strides, dtype=torch.int64)}
        return self.kernel.structs[0].fill(**fields, **given, variant=self._variants[window.passes])


def scratch(window: Window, widths: Sequence[int]) -> dict[str, list[Tensor | None]]:
    """Tables of scratch that the threads of a call share. widths: of a row of each operand; bfloat16 copies them."""
    copied: list[Tensor | None] = [None] * len(widths)
    if window.bf16:
        copied = copies(window.B, widths)
    norms = norm_counts(window.passes.normalizations)
    return {"copies": copied, "partials": partials(window.B, norms.values())}


def copies(B: int, widths: Sequence[int]) -> list[Tensor | None]:
    """For each width two rows per stream."""
    # Copies are in float32, or in bfloat16 padded to a multiple of 32 elements; the padding must be 0.
    return [torch.zeros(2, B, width + 16) for width in widths]


def partials(B: int, counts: Iterable[int]) -> list[Tensor | None]:
    """For each size the sums of its normalizations, `counts`, that threads exchange."""
    return [torch.empty(2, torch.get_num_threads(), count, 2, B) for count in counts]
