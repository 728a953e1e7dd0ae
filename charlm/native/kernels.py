"""All kernels: those that every training needs, and one for each cell. Wheels are built from it, without torch."""

import functools
from collections.abc import Sequence
from pathlib import Path

from charlm.cells.cell import Cell
from charlm.cells.cpp import cpp
from charlm.cells.derivative import both_passes
from charlm.cells.passes import Passes
from charlm.cells.state_options import PLAIN, StateOptions
from charlm.native.compiler import Kernel, KernelError
from charlm.native.structs import Struct

_HERE = Path(__file__).parent

PRODUCT = Kernel(_HERE / "product.cpp")
LOOKUP = Kernel(_HERE / "lookup.cpp")
RANDOM = Kernel(_HERE / "random.cpp")
LOSS = Kernel(_HERE / "loss.cpp")
OUTPUT = Kernel(_HERE / "output.cpp")
UPDATE = Kernel(_HERE / "update.cpp")
SHARED_KERNELS = (PRODUCT, LOOKUP, RANDOM, LOSS, OUTPUT, UPDATE)
"""The kernels that training needs besides the kind's own."""
MOST_CHARACTERS = 150_000
"""Of C++ for a cell. g++ 12 takes up to 40 s for them on an idle core, and minutes beside other load."""


def kernel_of(cell: Cell, options: StateOptions = PLAIN) -> Kernel:
    """The kernel of a cell's step as it is now; cells that differ only in sizes or initial values share it."""
    return kernel_of_passes(cell.name, both_passes(*cell.programs(), options))


@functools.lru_cache(maxsize=256)
def kernel_of_passes(name: str, general_and_square: tuple[Passes | None, ...]) -> Kernel:
    """The kernel of these passes, see `both_passes`; KernelError if they are too long."""
    variants = variants_of(general_and_square)
    text = cpp(variants)
    if len(text) > MOST_CHARACTERS:
        raise KernelError(f"its step is {len(text):,} characters of C++; allowed: {MOST_CHARACTERS:,}")
    structs = Struct(_HERE / "recurrence.h"), Struct(_HERE / "generate.h", "Generation")
    key = repr((text, [passes.split for passes in variants]))  # equal texts can have different names of gates
    return _kernels.setdefault(key, Kernel(_HERE / "recurrence.cpp", structs, name, text))


_kernels: dict[str, Kernel] = {}
"""Each library once."""


def variants_of(general_and_square: Sequence[Passes | None]) -> list[Passes]:
    """The different ones among them; the index in this list is `Arguments::variant`."""
    different: list[Passes] = []
    for passes in general_and_square:
        if passes is not None and all(passes.split != other.split for other in different):
            different.append(passes)
    return different
