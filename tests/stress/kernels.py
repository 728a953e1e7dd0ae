"""Holds the kernels of random cells to the reference: python -m tests.stress.kernels"""

import argparse
import os
import tempfile

from tests.cells.programs import drawn
from tests.cells.test_kernels import HIDDEN, hold_kernels_to_the_rule

_AT_ONCE = 6


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold the kernels of random cells to the reference.")
    parser.add_argument("--cells", type=int, default=300, metavar="N", help="how many cells")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["CHARLM_CACHE"] = cache
        cells = drawn(arguments.cells, HIDDEN)
        for start in range(0, len(cells), _AT_ONCE):
            hold_kernels_to_the_rule(cells[start : start + _AT_ONCE])
            print(f"{min(start + _AT_ONCE, len(cells))} of {len(cells)} cells", flush=True)


if __name__ == "__main__":
    main()
