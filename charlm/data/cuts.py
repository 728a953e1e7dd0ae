"""Where the files of a text are cut into splits: no file alone decides what a model is validated on.

A text of one file is cut in order. Of several, each gives its share to validation and test, from its end. A share that
is too short to be scored goes into a longer piece of one of several such files; of small ones whole files are taken.
"""

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from charlm.data.hashes import scattered
from charlm.system.formatting import counted

Bounds = npt.NDArray[np.int64]

CHARS, LINES = 1_000, 1
"""Characters, or lines, that are enough to score: a state from elsewhere spoils the score of the first few hundred
characters, but not that of lines."""
_PIECES = 32
"""Pieces of a split at least, as far as there are files; then they are shorter."""
_SMALL = 16
"""A file of up to so many pieces is small."""
_BLOCK = 16
"""Files that stand together in the list are taken in a random order, because lists may have a period."""


def cuts(lengths: Sequence[int], shares: Sequence[float], enough: int = CHARS) -> Bounds:
    """Where the splits of each file begin and end, [F, S + 1]: places in the text, which is all files joined.

    Split s of file f is cuts[f, s] : cuts[f, s + 1]. lengths: of the files, in characters or lines. shares: of the
    splits, training first. enough: how many of these are a piece.

    Of one file with N characters, split k ends at floor(N · (share_0 + … + share_k) / (sum of all shares)). The
    fractions are exact: 0.9 is 9/10, and the last part ends at N.
    """
    exact = [Fraction(str(float(share))) for share in shares]
    total = sum(exact)
    assert min(exact) >= 0 < total, f"shares of a split: {shares}"
    ends = [end / total for end in itertools.accumulate(exact, initial=Fraction(0))]
    smallest = float(min(filter(None, exact)) / total)
    sizes = np.array(lengths, np.int64)
    least = smallest * sizes  # of each file in the smallest split
    piece = min(enough, smallest * sizes[least < enough].sum() / _PIECES)
    is_small = sizes <= _SMALL * piece
    is_long = ~is_small & (least >= piece)
    is_middling = ~is_small & ~is_long
    parts = np.zeros((len(sizes), len(shares)), np.int64)
    parts[is_small] = _parts(sizes[is_small].tolist(), ends, None)
    parts[is_middling] = _parts(sizes[is_middling].tolist(), ends, int(piece))
    parts[is_long] = _parts(sizes[is_long].tolist(), ends, int(piece))
    begins = np.cumsum(sizes) - sizes
    return np.cumsum(np.c_[begins, parts], axis=1)


def _parts(lengths: list[int], ends: Sequence[Fraction], piece: int | None) -> Bounds:
    """How much of each file every split takes, [F, S], with a piece at least, or the whole file if `piece` is None.

    A split takes what it lacks, if that is half of a piece or more. ends: of the splits, as shares of the text.
    """
    mean_length = sum(lengths) / max(len(lengths), 1)
    least = (mean_length if piece is None else piece) / 2
    unit = math.lcm(*(end.denominator for end in ends))
    ends_in_units = [int(end * unit) for end in ends]
    splits = range(1, len(ends) - 1)
    parts = np.zeros((len(lengths), len(ends) - 1), np.int64)
    taken = dict.fromkeys(splits, 0)
    seen = 0
    for file in _some_order(len(lengths)):
        left = lengths[file]
        seen += left
        due = {}
        for split in splits:
            begin, end = ends_in_units[split : split + 2]
            due[split] = seen * end // unit - seen * begin // unit - taken[split]
        for split in sorted(splits, key=due.__getitem__, reverse=True):
            if due[split] > 0 and due[split] >= least:
                amount = left if piece is None else min(left, max(due[split], piece))
                parts[file, split] = amount
                taken[split] += amount
                left -= amount
        parts[file, 0] = left
    return parts


def _some_order(files: int) -> list[int]:
    """A random order within each block of files."""
    numbers = np.arange(files)
    return np.lexsort((scattered(numbers.astype(np.uint64)), numbers // _BLOCK)).tolist()


def described(bounds: Bounds, names: Sequence[str]) -> str:
    """Where the splits after the first come from, in words; "" for a text of one file."""
    sizes = np.diff(bounds, axis=1)
    sizes = sizes[sizes.any(axis=1)]
    whole = int((sizes[:, 0] == 0).sum())
    ends = int(sizes[:, 1:].any(axis=1).sum()) - whole
    if len(sizes) < 2 or not whole + ends:
        return ""
    where = f"whole files ({whole:,} of {len(sizes):,})"
    if ends:
        where = "the end of each file" if ends == len(sizes) else f"the ends of {ends:,} of {len(sizes):,} files"
        if whole:
            where += f", and {counted(whole, 'whole file')}"
    return f"{' and '.join(names[1:])} from {where}"
