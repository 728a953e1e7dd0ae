"""All kernels: those that every training needs, and one for each cell. Wheels are built from it, without torch."""

from pathlib import Path

from charlm.cells.cell import Cell
from charlm.cells.cpp import cpp
from charlm.cells.derivative import passes_of
from charlm.cells.passes import Passes
from charlm.errors import CellError
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
    """Both passes of a layer, and generation, for each of the programs of a cell."""

    def __init__(self, name: str, programs: list[Passes]) -> None:
        """KernelError if the step is too long."""
        text = cpp(programs)
        if len(text) > MOST_CHARACTERS:
            raise KernelError(f"its step is {len(text):,} characters of C++; allowed: {MOST_CHARACTERS:,}")
        structs = Struct(_HERE / "recurrence.h"), Struct(_HERE / "generate.h", "Generation")
        super().__init__(_HERE / "recurrence.cpp", structs, name, text)
        self.variants = [passes.split for passes in programs]


def programs_of(cell: Cell) -> list[Passes]:
    """What a cell computes in layers with as many inputs as hidden units, and in all others if that differs."""
    programs: list[Passes] = []
    for square in (False, True):
        try:
            passes = passes_of(cell, square)
        except CellError:
            if square:
                raise
            continue  # a cell that adds its input to its state is for square layers only
        if all(passes.split != other.split for other in programs):
            programs.append(passes)
    return programs
