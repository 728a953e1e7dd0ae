"""The driver in C++: both passes of a layer in one kernel each, compiled from a cell's programs at first use."""

import ctypes
import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from charlm.cells.cell import Cell
from charlm.cells.cpp import norm_sizes
from charlm.cells.derivative import both_passes
from charlm.cells.passes import Passes
from charlm.cells.program import units
from charlm.native.kernels import LOOKUP, CellKernel
from charlm.native.linear import linear, matmul
from charlm.native.recurrence import Driver, Window


def fused(cell: Cell) -> "FusedDriver":
    """The driver of a cell's step as it is now, see `driver_of`."""
    return driver_of(cell.name, *both_passes(*cell.programs()))


@functools.lru_cache(maxsize=64)
def driver_of(name: str, general: Passes | None, square: Passes) -> "FusedDriver":
    """The driver of `both_passes`. KernelError if the step is too long."""
    driver = FusedDriver(name, [general, square])
    key = repr((driver.text, driver.variants))  # equal texts can have different names of gates
    return _drivers.setdefault(key, driver)


_drivers: dict[str, "FusedDriver"] = {}
"""Each library once: cells that differ only in sizes or initial values share it."""


class FusedDriver(CellKernel, Driver):
    """In float32 on the CPU, with products in float32 or bfloat16."""

    takes_ids = True
    padding = 16  # the largest W of vector.h
    linear = staticmethod(linear)
    matmul = staticmethod(matmul)

    def __init__(self, name: str, variants: Sequence[Passes | None]) -> None:
        super().__init__(name, variants)
        self._known: dict[int, tuple[Passes, int]] = {}

    def run(self, window: Window) -> None:
        function = "recurrence_forward" if window.d_last is None else "recurrence_backward"
        scratch = self.scratch(window)
        self.call(function, self.filled(window, scratch))

    def variant(self, passes: Passes) -> int:
        """The index of the library's cell that computes these passes."""
        if id(passes) not in self._known:  # comparing whole programs takes as long as a small layer
            self._known[id(passes)] = (passes, self.variants.index(passes.split))
        return self._known[id(passes)][1]

    def filled(self, window: Window, scratch: dict[str, list[Tensor | None]]) -> ctypes.Structure:
        """The struct of a call. The tensors must outlive it."""
        fields = {name: value for name, value in vars(window).items() if name != "passes"}
        rows = 0 if window.zoneout is None else window.zoneout.shape[0] * window.zoneout.shape[1]
        return self.structs[0].fill(**fields, **scratch, zoneout_rows=rows, variant=self.variant(window.passes))

    def scratch(self, window: Window) -> dict[str, list[Tensor | None]]:
        """Scratch that the threads of a call share."""
        passes, B = window.passes, window.B
        if window.d_last is None:
            copied = window.bf16 or window.mask is not None
            read = [(1, operand.size) for operand in passes.operands]
        else:
            copied = window.bf16
            read = [(product.gates, product.size) for product in passes.products]
        widths = [count * units(size, window.H, window.I) if copied else 0 for count, size in read]
        threads = torch.get_num_threads()
        norms = [norm.size for norm in passes.normalizations]
        # Copies are in float32, or in bfloat16 padded to a multiple of 32 elements; the padding must be 0.
        return {
            "copies": [torch.zeros(2, B, width + 16) if width else None for width in widths],
            "partials": [
                torch.empty(2, threads, norms.count(size), 2, B) for size in norm_sizes(passes.normalizations)
            ],
        }

    def gradient_of_rows(self, d_rows_TBN: Tensor, ids_TB: Tensor | None, V: int) -> Tensor:
        if ids_TB is None:
            return d_rows_TBN
        d_rows_VN = d_rows_TBN.new_empty(V, d_rows_TBN.shape[-1])
        sizes = {"N": ids_TB.numel(), "V": V, "columns": d_rows_TBN.shape[-1]}
        LOOKUP("lookup_gradient", **sizes, ids=ids_TB, d_rows=d_rows_TBN, d_table=d_rows_VN)
        return d_rows_VN
