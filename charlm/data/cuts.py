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
    assert min(exact) >= 0 < sum(exact), f"shares of a split: {shares}"
    running = [share / sum(exact) for share in itertools.accumulate(exact, initial=Fraction(0))]
    sizes, least = np.array(lengths, np.int64), float(min(filter(None, exact)) / sum(exact))
    piece = min(enough, least * sizes[least * sizes < enough].sum() / _PIECES)
    is_small, is_long = sizes <= _SMALL * piece, least * sizes >= piece
    parts = np.zeros((len(sizes), len(shares)), np.int64)
    for files, takes_whole in ((is_small, True), (~is_small & ~is_long, False), (~is_small & is_long, False)):
        parts[files] = _parts(sizes[files].tolist(), running, None if takes_whole else int(piece))
    begins = np.cumsum(sizes) - sizes
    return np.cumsum(np.c_[begins, parts], axis=1)


def _parts(lengths: list[int], running: Sequence[Fraction], piece: int | None) -> Bounds:
    """How much of each file every split takes, [F, S], with a piece at least, or the whole file if `piece` is None.

    A split takes what it lacks, if that is half of a piece or more.
    """
    least = (sum(lengths) / max(len(lengths), 1) if piece is None else piece) / 2
    unit = math.lcm(*(share.denominator for share in running))
    ends = [int(share * unit) for share in running]  # in 1/unit of the text
    splits = len(ends) - 1
    parts, taken, seen = np.zeros((len(lengths), splits), np.int64), [0] * splits, 0
    numbers = np.arange(len(lengths))
    for file in np.lexsort((scattered(numbers.astype(np.uint64)), numbers // _BLOCK)).tolist():
        left = lengths[file]
        seen += left
        due = [seen * ends[at + 1] // unit - seen * ends[at] // unit - taken[at] for at in range(splits)]
        for split in sorted(range(1, splits), key=due.__getitem__, reverse=True):
            if due[split] > 0 and due[split] >= least:
                amount = left if piece is None else min(left, max(due[split], piece))
                parts[file, split] = amount
                taken[split] += amount
                left -= amount
        parts[file, 0] = left
    return parts


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
