"""Cutting a text of lines into splits: by a hash of each line, so that equal lines are in the same split.

A line that would fill much of a split by itself, such as the empty line, is in all of them: its occurrences follow one
another through the splits, by the multiples of the golden ratio modulo 1 (Weyl 1916), so each split gets its share.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.data.cache import find_entry, map_entry, open_entry, store_entry
from charlm.data.hashes import BASE, line_hashes
from charlm.data.progress import Progress
from charlm.data.reading import NEWLINE
from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.formatting import counted

Ids = npt.NDArray[np.integer[Any]]
Starts = npt.NDArray[np.integer[Any]]
Hashes = npt.NDArray[np.uint64]
Lines = tuple[Ids, Starts]
"""A newline and then lines, and where each of them starts, and where the last ends."""
Sees = Callable[[Ids, Starts, npt.NDArray[np.bool_]], None]

_CHUNK = 1 << 18
"""Characters that are read at once; more if a line is longer."""
_BUCKETS = 1 << 20
"""Lines are counted by their hashes modulo this number, in constant memory."""
_FREQUENT = 0.1
"""A line is frequent if it has more than this share of the lines that the smallest split should get …"""
_LEAST_SHARE = 1e-3
"""… or one of this share, and then few rare lines are in the bucket of a frequent one …"""
_FEW = 4
"""… and more than so many occurrences."""
_DOMINANT = 0.2
"""A frequent line with this share of all lines is reported."""


def find_splits(key: str, shares: Mapping[str, float]) -> dict[str, Lines] | None:
    """What `split_lines` has put into the cache; None if any of it is missing."""
    splits = {}
    for name in shares:
        ids, starts = find_entry(f"{key}-{name}"), find_entry(f"{key}-{name}-starts")
        if ids is None or starts is None:
            return None
        splits[name] = ids, starts
    return splits


def split_lines(
    ids: Ids,
    vocabulary: Vocabulary,
    shares: Mapping[str, float],
    *,
    key: str,
    source: str,
    sees: Sees | None = None,
    spread: bool = True,
) -> dict[str, Lines]:
    """The lines of `ids` [N] in splits, memory-mapped: for each a newline and then its lines, and where each starts.

    Every line ends with a newline, the last one too. The starts [lines + 1] are those of `LineStreams`. The split of a
    line depends on its characters and the shares alone: not on other lines, nor on the vocabulary. Only the occurrences
    of a frequent line are spread over the splits, unless `spread` is off. key: of the entries in the cache, for these
    ids.

    sees: called with whole lines, some at a time, where each ends, and whether it is for training.

    DataError for a split with a share above 0 that gets no line.
    """
    say("data", f"{source}: splitting {counted(len(ids), 'character')} by lines")
    newline = vocabulary.dtype.type(vocabulary.encode(NEWLINE)[0])
    starts_dtype = np.min_scalar_type(len(ids) + 1)
    trains = np.array([name == "train" for name in shares])
    repeats, progress = _Repeats(vocabulary, source), Progress(2 * len(ids), f"{source}: splitting")
    for chunk in progress.of(line_chunks(ids, newline)):
        repeats.count(line_hashes(chunk, line_ends(chunk, newline), vocabulary))
    if spread:
        repeats.find_frequent(shares)
    with ExitStack() as opened:
        entries = [
            (
                opened.enter_context(open_entry(f"{key}-{name}", newline.dtype)),
                opened.enter_context(open_entry(f"{key}-{name}-starts", starts_dtype)),
            )
            for name in shares
        ]
        for append_ids, append_starts in entries:
            append_ids(np.array([newline]))
            append_starts(np.array([1]))
        sizes = [1] * len(entries)
        for chunk in progress.of(line_chunks(ids, newline)):
            ends = line_ends(chunk, newline)
            hashes = line_hashes(chunk, ends, vocabulary)
            repeats.report(hashes, chunk, ends)
            splits = _splits_of(repeats.spread(hashes), shares)
            if sees is not None:
                sees(chunk, ends, trains[splits])
            lengths = np.diff(ends, prepend=0)
            split_of_chars = np.repeat(splits, lengths)
            for split, (append_ids, append_starts) in enumerate(entries):
                append_ids(chunk[split_of_chars == split])
                line_stops = sizes[split] + np.cumsum(lengths[splits == split])
                append_starts(line_stops)
                sizes[split] = int(line_stops[-1]) if len(line_stops) else sizes[split]
        for name, size in zip(shares, sizes, strict=True):
            if size == 1:
                raise DataError(
                    f"{source}: none of {counted(repeats.lines, 'line')} is in the {name} split, which "
                    "takes lines by a hash, and equal lines together; allowed: a line or more in each split; add "
                    "lines, change the shares (data.split), or give each split a text of its own (data.valid_source)"
                )
    return {
        name: (map_entry(f"{key}-{name}", newline.dtype), map_entry(f"{key}-{name}-starts", starts_dtype))
        for name in shares
    }


def backward_starts(ids: Ids, starts: Starts, *, key: str) -> Starts:
    """Where each line starts in a split that is read from its end, memory-mapped. key: of the entry in the cache.

    The last line comes first, and the newline before a line becomes the one that ends it.
    """
    if (cached := find_entry(key)) is not None:
        return cached
    ends = range(len(starts), 0, -_CHUNK)
    blocks = (len(ids) + 1 - starts[max(end - _CHUNK, 0) : end][::-1].astype(np.int64) for end in ends)
    return store_entry(key, starts.dtype, blocks)


def line_chunks(ids: Ids, newline: np.integer[Any]) -> Iterator[Ids]:
    """Whole lines, some at a time; the last one ends with a newline too."""
    start = end = last = 0
    while start < len(ids):
        assert end < len(ids), "the last line has no newline"
        begin, end = end, min(end + _CHUNK, len(ids))
        ends = line_ends(ids[begin:end], newline)
        if len(ends):
            last = begin + int(ends[-1])
            yield np.asarray(ids[start:last])
            start = last


def line_ends(chunk: Ids, newline: np.integer[Any]) -> npt.NDArray[np.int64]:
    """Where the lines of a chunk end, behind their newlines."""
    return np.flatnonzero(chunk == newline) + 1


class _Repeats:
    """Counts equal lines, and spreads the occurrences of those that are frequent. Lines of one bucket count as one."""

    def __init__(self, vocabulary: Vocabulary, source: str) -> None:
        self._vocabulary, self._source = vocabulary, source
        self._counts, self._spread_counts = np.zeros(_BUCKETS, np.int64), np.zeros(_BUCKETS, np.int64)
        self._frequent = np.zeros(_BUCKETS, np.bool_)
        self._dominant: int | None = None
        """The bucket of a line that dominates the text and is not reported yet."""

    @property
    def lines(self) -> int:
        """How many lines were counted."""
        return int(self._counts.sum())

    def count(self, hashes: Hashes) -> None:
        """Count the next lines."""
        np.add.at(self._counts, _buckets(hashes), 1)

    def find_frequent(self, shares: Mapping[str, float]) -> None:
        """Find the frequent lines, once all lines are counted."""
        smallest = max(min(shares.values()) / sum(shares.values()), _LEAST_SHARE)
        self._frequent = self._counts > max(_FREQUENT * smallest * self.lines, _FEW)
        most = int(self._counts.argmax())
        if self._frequent[most] and self._counts[most] >= _DOMINANT * self.lines:
            self._dominant = most

    def spread(self, hashes: Hashes) -> Hashes:
        """The hashes of the next lines, those of a frequent line's occurrences spread evenly."""
        buckets = _buckets(hashes)
        frequent = np.flatnonzero(self._frequent[buckets])
        if not len(frequent):
            return hashes
        frequent = frequent[np.argsort(buckets[frequent], kind="stable")]
        kinds, firsts, counts = np.unique(buckets[frequent], return_index=True, return_counts=True)
        nth = np.arange(len(frequent)) + np.repeat(self._spread_counts[kinds] - firsts, counts)
        self._spread_counts[kinds] += counts
        spread = hashes.copy()
        spread[frequent] += nth.astype(np.uint64) * BASE
        return spread

    def report(self, hashes: Hashes, chunk: Ids, ends: Starts) -> None:
        """Print a line about the most frequent line where it first occurs, if it dominates the text."""
        if self._dominant is None or not (is_dominant := _buckets(hashes) == self._dominant).any():
            return
        number = int(is_dominant.argmax())
        begin, end = np.r_[0, ends][number : number + 2]
        line = chunk[begin : end - 1]
        text = self._vocabulary.decode(self._vocabulary.reversed_if_backward(line[:60]).tolist(), "surrogateescape")
        what = f"{text!r}{' …' if len(line) > 60 else ''}" if len(line) else "empty"
        say(
            "lines",
            f"{self._source}: {self._counts[self._dominant] / self.lines:.0%} of {self.lines:,} lines are {what}; they "
            "count as much in the scores; remove them from the text if they are no records",
        )
        self._dominant = None


def _buckets(hashes: Hashes) -> npt.NDArray[np.int64]:
    return (hashes & np.uint64(_BUCKETS - 1)).astype(np.int64)


def _splits_of(hashes: Hashes, shares: Mapping[str, float]) -> npt.NDArray[np.uint8]:
    """The index of each line's split."""
    bounds = np.cumsum(list(shares.values()))
    # In 53 bits, which a float64 holds.
    place = (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53 * bounds[-1]
    return np.searchsorted(bounds, place, side="right").clip(max=len(bounds) - 1).astype(np.uint8)
