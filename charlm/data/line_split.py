"""Cutting a text of lines into splits: by a hash of each line, so that equal lines are in the same split.

A line that would fill much of a split by itself, such as the empty line, is in all of them: its occurrences follow one
another through the splits, by the multiples of the golden ratio modulo 1 (Weyl 1916), so each split gets its share.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from charlm.data.cache import Append, find_entry, map_entry, open_entry, store_entry, writable_folder
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
_PIECE = 1 << 15
"""Characters that are hashed at once: all arrays then stay in the caches."""
_FACTOR = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2⁶⁴; 2⁶⁴ divided by the golden ratio
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
    found = {}
    for name in shares:
        ids, starts = find_entry(f"{key}-{name}"), find_entry(f"{key}-{name}-starts")
        if ids is None or starts is None:
            return None
        found[name] = ids, starts
    return found


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

    sees: called with whole lines, some at a time, where each ends, and whether it is for training; before anything is
    written.

    DataError for a split with a share above 0 that gets no line.
    """
    say("data", f"{source}: splitting {counted(len(ids), 'character')} by lines")
    newline = vocabulary.dtype.type(vocabulary.encode(NEWLINE)[0])
    progress = Progress(3 * len(ids), f"{source}: splitting")
    with ExitStack() as held:
        with writable_folder() as folder:
            hashed, chosen = (held.enter_context(TemporaryFile(dir=folder)) for _ in range(2))
            repeats = _Repeats()
            for chunk in progress.of(line_chunks(ids, newline)):
                hashes = line_hashes(chunk, line_ends(chunk, newline), vocabulary)
                repeats.count(hashes)
                hashed.write(hashes.data)
            if spread:
                repeats.find_frequent(shares)
            chunks = _with_hashes(progress.of(line_chunks(ids, newline)), newline, hashed)
            lines, chars = _choose(chosen, chunks, newline, shares, repeats, sees)
            repeats.report(_with_hashes(line_chunks(ids, newline), newline, hashed), newline, vocabulary, source)
        for name, count in zip(shares, lines, strict=True):
            if not count:
                raise DataError(
                    f"{source}: none of {counted(sum(lines), 'line')} is in the {name} split, which "
                    "takes lines by a hash, and equal lines together; allowed: a line or more in each split; add "
                    "lines, change the shares (data.split), or give each split a text of its own (data.valid_source)"
                )
        stores = [
            held.enter_context(_open_split(f"{key}-{name}", 1 + length, 1 + count, newline))
            for name, length, count in zip(shares, chars, lines, strict=True)
        ]
        chosen.seek(0)
        for chunk in progress.of(line_chunks(ids, newline)):
            ends = line_ends(chunk, newline)
            splits = np.frombuffer(chosen.read(len(ends)), np.uint8)
            of_chars = np.repeat(splits, np.diff(ends, prepend=0))
            for split, store in enumerate(stores):
                store.append(chunk[of_chars == split])
    return {name: (map_entry(f"{key}-{name}"), map_entry(f"{key}-{name}-starts")) for name in shares}


def backward_starts(ids: Ids, starts: Starts, *, key: str) -> Starts:
    """Where each line starts in a split that is read from its end, memory-mapped. key: of the entry in the cache.

    The last line comes first, and the newline before a line becomes the one that ends it.
    """
    if (found := find_entry(key)) is not None:
        return found
    ends = range(len(starts), 0, -_CHUNK)
    wide = (len(ids) + 1 - starts[max(end - _CHUNK, 0) : end][::-1].astype(np.int64) for end in ends)
    return store_entry(key, starts.shape, starts.dtype, (block.astype(starts.dtype) for block in wide))


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


def _with_hashes(chunks: Iterable[Ids], newline: np.integer[Any], hashed: IO[bytes]) -> Iterator[tuple[Ids, Hashes]]:
    """Chunks of whole lines, and the hashes of their lines, which are read from a file."""
    hashed.seek(0)
    for chunk in chunks:
        yield chunk, np.frombuffer(hashed.read(8 * int(np.count_nonzero(chunk == newline))), np.uint64)


def _choose(
    chosen: IO[bytes],
    chunks: Iterable[tuple[Ids, Hashes]],
    newline: np.integer[Any],
    shares: Mapping[str, float],
    repeats: "_Repeats",
    sees: Sees | None,
) -> tuple[list[int], list[int]]:
    """Write the index of each line's split, a byte each; how many lines and characters each split gets."""
    lines, chars = np.zeros(len(shares), np.int64), np.zeros(len(shares), np.int64)
    trains = np.array([name == "train" for name in shares])
    for chunk, hashes in chunks:
        ends = line_ends(chunk, newline)
        splits = _splits_of(repeats.spread(hashes), shares)
        if sees is not None:
            sees(chunk, ends, trains[splits])
        chosen.write(splits.data)
        lines += np.bincount(splits, minlength=len(shares))
        # The sums are whole numbers below 2^53.
        chars += np.bincount(splits, np.diff(ends, prepend=0), minlength=len(shares)).astype(np.int64)
    return lines.tolist(), chars.tolist()


class _Repeats:
    """Counts equal lines, and spreads the occurrences of those that are frequent. Lines of one bucket count as one."""

    def __init__(self) -> None:
        self._counts, self._seen = np.zeros(_BUCKETS, np.int64), np.zeros(_BUCKETS, np.int64)
        self._frequent = np.zeros(_BUCKETS, np.bool_)

    def count(self, hashes: Hashes) -> None:
        """Count the next lines."""
        np.add.at(self._counts, _bucket(hashes), 1)

    def find_frequent(self, shares: Mapping[str, float]) -> None:
        """Find the frequent lines, once all lines are counted."""
        smallest = max(min(shares.values()) / sum(shares.values()), _LEAST_SHARE)
        self._frequent = self._counts > max(_FREQUENT * smallest * self._counts.sum(), _FEW)

    def spread(self, hashes: Hashes) -> Hashes:
        """The hashes of the next lines, those of a frequent line's occurrences spread evenly."""
        buckets = _bucket(hashes)
        often = np.flatnonzero(self._frequent[buckets])
        if not len(often):
            return hashes
        often = often[np.argsort(buckets[often], kind="stable")]
        kinds, firsts, counts = np.unique(buckets[often], return_index=True, return_counts=True)
        nth = np.arange(len(often)) + np.repeat(self._seen[kinds] - firsts, counts)
        self._seen[kinds] += counts
        spread = hashes.copy()
        spread[often] += nth.astype(np.uint64) * np.uint64(_FACTOR)
        return spread

    def report(
        self, chunks: Iterable[tuple[Ids, Hashes]], newline: np.integer[Any], vocabulary: Vocabulary, source: str
    ) -> None:
        """Print a line about the most frequent line if it dominates the text."""
        most, lines = int(self._counts.argmax()), int(self._counts.sum())
        if not self._frequent[most] or self._counts[most] < _DOMINANT * lines:
            return
        chunk, hashes = next(pair for pair in chunks if (_bucket(pair[1]) == most).any())
        number = int(np.argmax(_bucket(hashes) == most))
        begin, end = np.r_[0, line_ends(chunk, newline)][number : number + 2]
        text = vocabulary.decode(vocabulary.turned(chunk[begin : end - 1][:60]).tolist(), "surrogateescape")
        what = "empty" if begin == end - 1 else f"{text!r}{' …' if end - 1 - begin > 60 else ''}"
        say(
            "lines",
            f"{source}: {self._counts[most] / lines:.0%} of {lines:,} lines are {what}; they count as much in the "
            "scores; remove them from the text if they are no records",
        )


def _bucket(hashes: Hashes) -> npt.NDArray[np.int64]:
    return (hashes & np.uint64(_BUCKETS - 1)).astype(np.int64)


def _splits_of(hashes: Hashes, shares: Mapping[str, float]) -> npt.NDArray[np.uint8]:
    """The index of each line's split."""
    bounds = np.cumsum(list(shares.values()))
    # In 53 bits, which a float64 holds.
    place = (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53 * bounds[-1]
    return np.searchsorted(bounds, place, side="right").clip(max=len(bounds) - 1).astype(np.uint8)


def line_hashes(ids: Ids, ends: Starts, vocabulary: Vocabulary) -> npt.NDArray[np.uint64]:
    """A hash of the symbols of each line; the lines stand one behind the other and end at `ends`.

    A polynomial of the symbols modulo 2⁶⁴, by sums from the start of a piece; then its bits are scattered.
    """
    symbols = vocabulary.symbols.astype(np.uint64) + np.uint64(1)
    up, down = _powers(_PIECE)
    found = np.zeros(len(ends), np.uint64)
    # Of the line that the last piece has cut: its sum so far, and the factor that follows.
    done, total, power = 0, 0, 1
    for start in range(0, len(ids), _PIECE):
        piece = symbols[ids[start : start + _PIECE]]
        sums = np.zeros(len(piece) + 1, np.uint64)
        np.cumsum(piece * up[: len(piece)], out=sums[1:])
        inside = ends[done : np.searchsorted(ends, start + len(piece), side="right")] - start
        begins = np.append(0, inside)
        sums_of_lines = (np.append(sums[inside], sums[-1]) - sums[begins]) * down[begins]
        sums_of_lines[0] = (total + power * int(sums_of_lines[0])) & _MODULO
        found[done : done + len(inside)] = sums_of_lines[:-1]
        power = int(up[len(piece) - begins[-1]]) * (1 if len(inside) else power) & _MODULO
        total = int(sums_of_lines[-1])
        done += len(inside)
    return scattered(found)


@functools.cache
def _powers(n: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Those of the factor and of its inverse, 0 to n."""
    factors = (np.full(n, factor, np.uint64) for factor in (_FACTOR, pow(_FACTOR, -1, _MODULO + 1)))
    up, down = (np.cumprod(np.append(np.uint64(1), each)) for each in factors)
    return up, down


_MODULO = (1 << 64) - 1
"""Its bits are those that are kept."""


def scattered(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A hash of each number: the finalizer of MurmurHash3, modulo 2⁶⁴."""
    for factor in (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)):
        x = (x ^ (x >> np.uint64(33))) * factor
    return x ^ (x >> np.uint64(33))


@contextmanager
def _open_split(key: str, length: int, starts: int, newline: np.integer[Any]) -> Iterator["_Split"]:
    with (
        open_entry(key, (length,), newline.dtype) as append,
        open_entry(f"{key}-starts", (starts,), dtype := np.min_scalar_type(length)) as append_starts,
    ):
        yield _Split(append, lambda values: append_starts(values.astype(dtype)), newline)


class _Split:
    """A split that is written into the cache, some lines at a time."""

    def __init__(self, ids: Append, starts: Append, newline: np.integer[Any]) -> None:
        self._ids, self._starts, self._newline = ids, starts, newline
        self._length = 0
        self.append(np.array([newline]))

    def append(self, lines: Ids) -> None:
        self._ids(lines)
        self._starts(line_ends(lines, self._newline) + self._length)
        self._length += len(lines)
