"""All kernels: those that every training needs, and one for each cell. Wheels are built from it, without torch."""

import functools
from collections.abc import Sequence
from pathlib import Path

from charlm.cells.cell import Cell
from charlm.cells.cpp import cpp
from charlm.cells.derivative import both_passes
from charlm.cells.passes import Passes
from charlm.native.build import Kernel, KernelError
from charlm.native.structs import Struct

_HERE = Path(__file__).parent

PRODUCT = Kernel(_HERE / "product.cpp")
LOOKUP = Kernel(_HERE / "lookup.cpp")
RANDOM = Kernel(_HERE / "random.cpp")
LOSS = Kernel(_HERE / "loss.cpp")
UPDATE = Kernel(_HERE / "update.cpp")
SHARED_KERNELS = (PRODUCT, LOOKUP, RANDOM, LOSS, UPDATE)
"""The kernels that training needs besides the kind's own."""
MOST_CHARACTERS = 150_000
"""Of C++ for a cell. g++ 12 takes up to 40 s for them on an idle core, and minutes beside other load."""


class CellKernel(Kernel):
    """Both passes of a layer, and generation: recurrence.cpp and the text that cells/cpp.py writes for a cell.

    One library has several variants of a step, see `both_passes`. KernelError if they are too long.
    """

    def __init__(self, name: str, programs: Sequence[Passes | None]) -> None:
        different: list[Passes] = []
        for passes in programs:
            if passes is not None and all(passes.split != other.split for other in different):
                different.append(passes)
        self.variants = [passes.split for passes in different]
        """What each variant computes; its index is `Arguments::variant`."""
        text = cpp(different)
        if len(text) > MOST_CHARACTERS:
            raise KernelError(f"its step is {len(text):,} characters of C++; allowed: {MOST_CHARACTERS:,}")
        structs = Struct(_HERE / "recurrence.h"), Struct(_HERE / "generate.h", "Generation")
        super().__init__(_HERE / "recurrence.cpp", structs, name, text)


def kernel_of(cell: Cell) -> CellKernel:
    """The kernel of a cell's step as it is now; cells that differ only in sizes or initial values share it."""
    return kernel_of_programs(cell.name, *both_passes(*cell.programs()))


@functools.lru_cache(maxsize=64)
def kernel_of_programs(name: str, general: Passes | None, square: Passes) -> CellKernel:
    """The kernel of `both_passes`. KernelError if the step is too long."""
    kernel = CellKernel(name, [general, square])
    key = repr((kernel.text, kernel.variants))  # equal texts can have different names of gates
    return _kernels.setdefault(key, kernel)


_kernels: dict[str, CellKernel] = {}
"""Each library once."""
