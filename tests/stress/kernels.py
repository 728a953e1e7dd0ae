"""Holds what charlm derives of random cells and of random programs to the reference: python -m tests.stress.kernels"""

import argparse
import os
import tempfile

from tests.cells.forged import assert_every_path, forged
from tests.cells.programs import drawn
from tests.cells.test_kernels import HIDDEN, hold_kernels_to_the_rule

_AT_ONCE = 6
_IN_EACH_HUNDRED = 3


def main() -> None:
    parser = argparse.ArgumentParser(description="Hold what is derived of random cells and programs to the reference.")
    parser.add_argument("--cells", type=int, default=300, metavar="N", help="how many cells, which are compiled")
    parser.add_argument("--programs", type=int, default=3000, metavar="N", help="how many programs, few are compiled")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the seed of the first program")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["CHARLM_CACHE"] = cache
        _run_programs(arguments.programs, arguments.first)
        cells = drawn(arguments.cells, HIDDEN) if arguments.cells else []
        for start in range(0, len(cells), _AT_ONCE):
            hold_kernels_to_the_rule(cells[start : start + _AT_ONCE], [])
            print(f"{min(start + _AT_ONCE, len(cells))} of {len(cells)} cells", flush=True)


def _run_programs(number: int, first: int) -> None:
    for start in range(first, first + number, 100):
        programs = {seed: forged(seed) for seed in range(start, min(start + 100, first + number))}
        for seed, (program, square) in programs.items():
            try:
                assert_every_path(program, square)
            except Exception as error:
                raise AssertionError(f"program {seed}: {program}") from error
        hold_kernels_to_the_rule([], [*programs.values()][:_IN_EACH_HUNDRED])
        print(f"{start + len(programs) - first} of {number} programs", flush=True)


if __name__ == "__main__":
    main()
