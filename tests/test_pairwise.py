"""The helper that makes pairwise tables."""

import itertools

import pytest

from tests.pairwise import all_pairs


@pytest.mark.parametrize("sizes", [(2, 2), (8, 4, 4, 2), (3, 1, 5), (6, 8, 3, 2)])
def test_every_pair_occurs_and_few_rows_do(sizes):
    columns = [[f"{name}{n}" for n in range(size)] for name, size in zip("abcd", sizes, strict=False)]
    rows = all_pairs(*columns)
    assert rows == all_pairs(*columns)
    for (i, one), (j, other) in itertools.combinations(enumerate(columns), 2):
        assert {(row[i], row[j]) for row in rows} == set(itertools.product(one, other))
    assert [row[0] for row in rows[: sizes[0]]] == columns[0]
    assert {row[1:] for row in rows[: sizes[0]]} == {tuple(column[0] for column in columns[1:])}
    second, first = sorted(sizes)[-2:]
    assert first * second <= len(rows) <= first * second + 2 * first
