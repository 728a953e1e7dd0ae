"""Cutting a text of lines into splits: by a hash of each line, so that equal lines are in the same split."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.data.cache import find_entry, store_entry
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError
from charlm.system.console import say

Ids = npt.NDArray[np.integer[Any]]
Starts = npt.NDArray[np.int64]

NEWLINE = "\n"
_CHUNK = 1 << 22
"""Characters that are hashed at once; more if a line is longer."""
_FACTOR = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2⁶⁴


def split_lines(
    ids: Ids,
    vocabulary: Vocabulary,
    shares: Mapping[str, float],
    *,
    key: str,
    source: str,
    sees: Callable[[Ids, Starts, npt.NDArray[np.bool_]], None] | None = None,
) -> dict[str, tuple[Ids, Starts]]:
    """The lines of `ids` [N] in splits, memory-mapped: for each a newline and then its lines, and where each starts.

    Every line ends with a newline; a missing one at the end of the text is added. The starts [lines + 1] are those of
    `LineStreams`. The split of a line depends on its characters and the shares alone: not on other lines, nor on the
    vocabulary. key: of the entries in the cache, for these ids.

    sees: called with whole lines, some at a time, where each ends, and whether it is for training; before anything is
    written.

    DataError for a split with a share above 0 that gets no line.
    """
    entries = {name: (find_entry(f"{key}-{name}"), find_entry(f"{key}-{name}-starts")) for name in shares}
    found = {name: (of, starts) for name, (of, starts) in entries.items() if of is not None and starts is not None}
    if len(found) == len(shares) and sees is None:
        return found
    say("data", f"{source}: splitting {len(ids):,} characters by lines")
    newline = vocabulary.dtype.type(vocabulary.encode(NEWLINE)[0])
    symbols = vocabulary.symbols.astype(np.uint64)
    trains = np.array([name == "train" for name in shares])
    chosen = []
    for chunk in line_chunks(ids, newline):
        ends = line_ends(chunk, newline)
        chosen.append(_splits_of(symbols[chunk], ends, shares))
        if sees is not None:
            sees(chunk, ends, trains[chosen[-1]])
    counts = np.bincount(np.concatenate(chosen), minlength=len(shares))
    for count, (name, share) in zip(counts, shares.items(), strict=True):
        if share and not count:
            raise DataError(
                f"{source}: {counts.sum():,} lines, none of which is in the {name} split; allowed: enough lines for "
                f"each split; add lines or raise its share (data.split)"
            )
    return {
        name: found.get(name) or _store(f"{key}-{name}", partial(_lines_of, split, chosen, ids, newline), newline)
        for split, name in enumerate(shares)
    }


def backward_starts(ids: Ids, starts: Starts, *, key: str) -> Starts:
    """Where each line starts in a split that is read from its end, memory-mapped. key: of the entry in the cache.

    The last line comes first, and the newline before a line becomes the one that ends it.
    """
    if (found := find_entry(key)) is not None:
        return found
    ends = range(len(starts), 0, -_CHUNK)
    blocks = (np.ascontiguousarray(len(ids) + 1 - starts[max(end - _CHUNK, 0) : end][::-1]) for end in ends)
    return store_entry(key, starts.shape, np.dtype(np.int64), blocks)


def line_chunks(ids: Ids, newline: np.integer[Any]) -> Iterator[Ids]:
    """Whole lines, some at a time."""
    start = 0
    while start < len(ids):
        end = min(start + _CHUNK, len(ids))
        while not len(ends := line_ends(ids[start:end], newline)) and end < len(ids):
            end = min(end + _CHUNK, len(ids))
        if end == len(ids) and (not len(ends) or start + ends[-1] < end):
            yield np.append(ids[start:end], newline)
            return
        yield np.asarray(ids[start : start + ends[-1]])
        start += int(ends[-1])


def line_ends(chunk: Ids, newline: np.integer[Any]) -> Starts:
    """Where the lines of a chunk end, behind their newlines."""
    return np.flatnonzero(chunk == newline) + 1


def _splits_of(symbols: npt.NDArray[np.uint64], ends: Starts, shares: Mapping[str, float]) -> npt.NDArray[np.uint8]:
    """The index of each line's split."""
    bounds = np.cumsum(list(shares.values()))
    # In 53 bits, which a float64 holds.
    place = (line_hashes(symbols, ends) >> np.uint64(11)).astype(np.float64) / 2.0**53 * bounds[-1]
    return np.searchsorted(bounds, place, side="right").clip(max=len(bounds) - 1).astype(np.uint8)


def line_hashes(symbols: npt.NDArray[np.uint64], ends: Starts) -> npt.NDArray[np.uint64]:
    """A hash of the symbols of each line; the lines stand one behind the other and end at `ends`.

    A polynomial of the symbols modulo 2⁶⁴, by sums from the start of the chunk; then its bits are scattered.
    """
    n = len(symbols)
    up, down = (np.cumprod(np.r_[np.uint64(1), np.full(n, factor, np.uint64)]) for factor in (_UP, _DOWN))
    sums = np.r_[np.uint64(0), np.cumsum((symbols + np.uint64(1)) * up[:n], dtype=np.uint64)]
    starts = np.r_[0, ends[:-1]]
    return scattered((sums[ends] - sums[starts]) * down[starts])


def scattered(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A hash of each number: the finalizer of MurmurHash3, modulo 2⁶⁴."""
    for factor in (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)):
        x = (x ^ (x >> np.uint64(33))) * factor
    return x ^ (x >> np.uint64(33))


_UP, _DOWN = np.uint64(_FACTOR), np.uint64(pow(_FACTOR, -1, 1 << 64))


def _lines_of(split: int, chosen: list[npt.NDArray[np.uint8]], ids: Ids, newline: np.integer[Any]) -> Iterator[Ids]:
    """The lines of a split, some at a time."""
    for chunk, splits in zip(line_chunks(ids, newline), chosen, strict=True):
        lengths = np.diff(line_ends(chunk, newline), prepend=0)
        yield chunk[np.repeat(splits == split, lengths)]


def _store(key: str, lines: Callable[[], Iterator[Ids]], newline: np.integer[Any]) -> tuple[Ids, Starts]:
    """Write a split and the starts of its lines into the cache."""
    sizes = [(len(part), np.count_nonzero(part == newline)) for part in lines()]
    length, count = (int(sum(column)) for column in zip(*sizes, strict=True))

    def blocks() -> Iterator[Ids]:
        yield np.array([newline])
        yield from lines()

    def starts() -> Iterator[Starts]:
        before = 1
        yield np.array([before])
        for part in lines():
            yield line_ends(part, newline) + before
            before += len(part)

    ids = store_entry(key, (1 + length,), newline.dtype, blocks())
    return ids, store_entry(f"{key}-starts", (1 + count,), np.dtype(np.int64), starts())
