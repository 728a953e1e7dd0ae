"""Tables of test cases that try every pair of values without trying every combination."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def all_pairs(*columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows in which every value of a column meets every value of every other column; always the same rows.

    The first rows try each value of the first column with the first value of every other column.
    """

    def pairs(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(itertools.combinations(enumerate(row), 2))

    every = list(itertools.product(*(range(len(values)) for values in columns)))
    missing = set[tuple[tuple[int, int], ...]]().union(*map(pairs, every))
    first = [(index, *[0] * (len(columns) - 1)) for index in range(len(columns[0]))]
    rows = []
    while missing:
        best = first.pop(0) if first else max(every, key=lambda row: len(pairs(row) & missing))
        missing -= pairs(best)
        rows.append(tuple(values[index] for values, index in zip(columns, best, strict=True)))
    return rows


def pairwise(**columns: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test by the rows of `all_pairs`: pairwise(case=CASES, number=[1, 4])."""
    rows = all_pairs(*columns.values())
    ids = ["-".join(getattr(value, "__name__", str(value)) for value in row) for row in rows]
    return pytest.mark.parametrize(list(columns), rows, ids=ids)
