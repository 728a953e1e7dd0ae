"""All kernels: those that every training needs, and one for each cell. Wheels are built from it, without torch."""

from collections.abc import Sequence
from pathlib import Path

from charlm.cells.cpp import cpp
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
    """Both passes of a layer, and generation."""

    def __init__(self, name: str, variants: Sequence[Passes | None]) -> None:
        """One library for all variants of a step, see `both_passes`. KernelError if they are too long."""
        programs: list[Passes] = []
        for passes in variants:
            if passes is not None and all(passes.split != other.split for other in programs):
                programs.append(passes)
        text = cpp(programs)
        if len(text) > MOST_CHARACTERS:
            raise KernelError(f"its step is {len(text):,} characters of C++; allowed: {MOST_CHARACTERS:,}")
        structs = Struct(_HERE / "recurrence.h"), Struct(_HERE / "generate.h", "Generation")
        super().__init__(_HERE / "recurrence.cpp", structs, name, text)
        self.variants = [passes.split for passes in programs]
