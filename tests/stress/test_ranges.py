"""The extremes of every number of a config, over all kinds of cells and optimizers: the long form of
tests/training/test_ranges.py.
"""

import multiprocessing
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stress.ranges import MIXES, Number, config_with, extremes, is_refused, numbers, train_and_resume
from tests.text import words_text

MOST_BYTES = 8_000_000_000
"""Of addresses that a training may have."""
LONGEST_S = 120


@pytest.mark.rare
@pytest.mark.skipif(sys.platform == "win32", reason="forks")
@pytest.mark.parametrize("number", [*numbers()], ids=lambda number: number.key)
def test_an_extreme_is_refused_with_the_range_or_a_training_ends_well(number: Number, tmp_path: Path) -> None:
    import charlm.training.start  # noqa: F401 (once for all)

    text, choose = tmp_path / "text.txt", random.Random(number.key)
    text.write_text(words_text(3000), encoding="utf-8")
    faults = []
    for value in extremes(number):
        raw = config_with(number, value, *choose.choice(MIXES), text)
        arguments = number, raw, tmp_path / str(value)
        process = multiprocessing.get_context("fork").Process(target=in_bounds, args=arguments)
        process.start()
        process.join(LONGEST_S)
        if process.exitcode != 0:
            faults.append(f"{value!r}: exit code {process.exitcode}")
        process.kill()
    assert not faults


def in_bounds(number: Number, raw: dict[str, Any], run_dir: Path) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    if not is_refused(number, raw):
        train_and_resume(raw, run_dir)
