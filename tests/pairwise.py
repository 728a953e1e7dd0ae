"""Tables of test cases that try every pair of values without trying every combination."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def all_pairs(*columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Rows in which every value of a column meets every value of every other column; always the same rows.

    The first rows try each value of the first column with the first value of every other column.
    """
    missing = {
        ((i, a), (j, b)): None
        for i, j in itertools.combinations(range(len(columns)), 2)
        for a, b in itertools.product(range(len(columns[i])), range(len(columns[j])))
    }
    rows: list[dict[int, int]] = [dict.fromkeys(range(len(columns)), 0) | {0: a} for a in range(len(columns[0]))]

    def fresh(row: dict[int, int], place: int, value: int) -> int:
        """How many missing pairs the row would get by this value."""
        return sum(tuple(sorted([one, (place, value)])) in missing for one in row.items())

    def cover(row: dict[int, int]) -> None:
        for pair in itertools.combinations(sorted(row.items()), 2):
            missing.pop(pair, None)

    for row in rows:
        cover(row)
    while missing:
        row = dict(next(iter(missing)))
        for place in range(len(columns)):
            if place not in row:
                row[place] = max(range(len(columns[place])), key=lambda value: fresh(row, place, value))
        cover(row)
        rows.append(row)
    return [tuple(columns[place][row[place]] for place in range(len(columns))) for row in rows]


def pairwise(**columns: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test by the rows of `all_pairs`: pairwise(case=CASES, number=[1, 4])."""
    rows = all_pairs(*columns.values())
    ids = ["-".join(getattr(value, "__name__", str(value)) for value in row) for row in rows]
    return pytest.mark.parametrize(list(columns), rows, ids=ids)
