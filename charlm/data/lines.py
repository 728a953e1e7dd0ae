"""Texts whose lines are records: a record begins after a newline and ends with the next one.

The network alone knows too: it sets its state to zero before each newline, see `CharLM.reset_id`.

A line is in a split by its hash, so equal lines are in the same one. A line that would fill much of a split by itself,
such as the empty line, is in all of them: its occurrences follow one another through the splits, by the multiples of
the golden ratio modulo 1 (Weyl 1916), so each split gets its share.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.data.cache import find_entry, map_entry, open_entry, store_entry
from charlm.data.cuts import LINES, cuts
from charlm.data.hashes import BASE, line_hashes
from charlm.data.reading import NEWLINE, Unit
from charlm.data.vocabulary import Ids, Vocabulary
from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.formatting import counted

Hashes = npt.NDArray[np.uint64]
Buckets = npt.NDArray[np.int64]

_CHUNK = 1 << 18
"""Characters that are read at once; more if a line is longer."""
_BUCKETS = 1 << 20
"""Lines are counted by their hashes modulo this number, in constant memory."""
_FREQUENT = 0.1
_LEAST_SHARE = 1e-3
_FEW = 4
"""A line is frequent if it occurs more than `_FEW` times and makes up more than `_FREQUENT` of the smallest split's
share of lines. Shares below `_LEAST_SHARE` count as `_LEAST_SHARE`, so that a frequent line outnumbers the rare
lines in its bucket."""


def newline_of(vocabulary: Vocabulary) -> np.integer[Any]:
    """The id of a newline; VocabularyError if it has none."""
    return vocabulary.dtype.type(vocabulary.encode(NEWLINE)[0])


def reset_id_of(unit: Unit, vocabulary: Vocabulary) -> int | None:
    """The id before which the state is set to zero, see `CharLM.reset_id`: a newline if lines are the unit."""
    return int(newline_of(vocabulary)) if unit == "line" else None


def as_records(ids: Ids, reset_id: int | None, *, ended: bool = True) -> Ids:
    """Ids as a model of records reads them, with the newline before the first; as they are if `reset_id` is None.

    ended: with the newline that ends the last one too.
    """
    if reset_id is None:
        return ids
    newline = np.array([reset_id], ids.dtype)
    return np.concatenate([newline, ids, newline] if ended else [newline, ids])


def write_splits(
    ids: Ids, vocabulary: Vocabulary, shares: Mapping[str, float], *, key: str, source: str
) -> dict[str, Ids]:
    """Write the lines of `ids` [N] into an entry `key-NAME` of the cache for each split: a newline and then its lines.

    Every line must end with a newline, the last one too. The split of a line depends on its characters and the shares
    alone: not on other lines, nor on the vocabulary. But the occurrences of a frequent line are spread over the splits.
    DataError for a split that gets no line.
    """
    say("data", f"{source}: splitting {counted(len(ids), 'character')} by lines")
    newline, counts = newline_of(vocabulary), np.zeros(_BUCKETS, np.int64)
    for chunk in line_chunks(ids, newline):
        np.add.at(counts, _buckets(line_hashes(chunk, _line_ends(chunk, newline), vocabulary)), 1)
    frequent = _frequent(counts, shares)
    earlier, sizes = Counter[int](), dict.fromkeys(shares, 0)
    with ExitStack() as opened:
        writers = {name: opened.enter_context(open_entry(f"{key}-{name}", newline.dtype)) for name in shares}
        for append in writers.values():
            append(np.array([newline]))
        for chunk in line_chunks(ids, newline):
            ends = _line_ends(chunk, newline)
            hashes = line_hashes(chunk, ends, vocabulary)
            buckets = _buckets(hashes)
            for bucket in np.unique(buckets[frequent[buckets]]).tolist():
                (places,) = np.nonzero(buckets == bucket)
                hashes[places] += np.arange(earlier[bucket], earlier[bucket] + len(places), dtype=np.uint64) * BASE
                earlier[bucket] += len(places)
            split_of_chars = np.repeat(_splits_of(hashes, shares), np.diff(ends, prepend=0))
            for number, (name, append) in enumerate(writers.items()):
                append(split_ids := chunk[split_of_chars == number])
                sizes[name] += len(split_ids)
        for name, size in sizes.items():
            if not size:
                raise _no_line(
                    source, int(counts.sum()), f"{name} split, which takes lines by a hash, and equal lines together"
                )
    return {name: map_entry(f"{key}-{name}", newline.dtype) for name in shares}


def write_ordered_splits(
    ids: Ids, lengths: Sequence[int], vocabulary: Vocabulary, shares: Mapping[str, float], *, key: str, source: str
) -> dict[str, Ids]:
    """The same with lines from the end of each file, whose characters are `lengths`, for the splits after the first."""
    ends = line_starts(ids, vocabulary, f"{key}-text")  # `ids` begins with a line, so only their ends follow a newline
    lines = np.searchsorted(ends, np.cumsum([0, *lengths]), side="right")
    bounds = cuts(np.diff(lines).tolist(), list(shares.values()), LINES)
    places = np.where(bounds > 0, ends[bounds - 1], 0).astype(np.int64)
    newline, splits = np.array([newline_of(vocabulary)]), {}
    for number, name in enumerate(shares):
        pieces = [ids[begin:end] for begin, end in places[:, number : number + 2]]
        if not any(map(len, pieces)):
            raise _no_line(source, len(ends), f"{name} split")
        splits[name] = store_entry(f"{key}-{name}", newline.dtype, [newline, *pieces])
    return splits


def _no_line(source: str, lines: int, split: str) -> DataError:
    return DataError(
        f"{source}: none of {counted(lines, 'line')} is in the {split}; allowed: a line or more in each split; add "
        "lines, change the shares (data.split), or give each split a text of its own (data.valid_source)"
    )


def _frequent(counts: Buckets, shares: Mapping[str, float]) -> npt.NDArray[np.bool_]:
    """Which buckets hold a line that would fill much of a split by itself."""
    smallest = max(min(shares.values()) / sum(shares.values()), _LEAST_SHARE)
    return counts > max(_FREQUENT * smallest * counts.sum(), _FEW)


def _buckets(hashes: Hashes) -> Buckets:
    return (hashes & np.uint64(_BUCKETS - 1)).astype(np.int64)


def _splits_of(hashes: Hashes, shares: Mapping[str, float]) -> npt.NDArray[np.uint8]:
    """The index of each line's split."""
    bounds = np.cumsum(list(shares.values()))
    # In 53 bits, which a float64 holds.
    place = (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53 * bounds[-1]
    return np.searchsorted(bounds, place, side="right").clip(max=len(bounds) - 1).astype(np.uint8)


def line_chunks(ids: Ids, newline: np.integer[Any]) -> Iterator[Ids]:
    """Whole lines, some at a time; the last one ends with a newline too."""
    start = end = 0
    while start < len(ids):
        assert end < len(ids), "the last line has no newline"
        begin, end = end, min(end + _CHUNK, len(ids))
        ends = _line_ends(ids[begin:end], newline)
        if len(ends):
            yield np.asarray(ids[start : begin + int(ends[-1])])
            start = begin + int(ends[-1])


def _line_ends(chunk: Ids, newline: np.integer[Any]) -> npt.NDArray[np.int64]:
    """Where the lines of a chunk end, behind their newlines."""
    return np.flatnonzero(chunk == newline) + 1


def line_starts(ids: Ids, vocabulary: Vocabulary, key: str) -> Ids:
    """Where each line of a split starts, and where the last one ends, [lines + 1], memory-mapped.

    ids: of the split with this key in the cache.
    """
    key = f"{key}-starts"
    starts = find_entry(key, np.min_scalar_type(len(ids)))
    if starts is None:
        newline, begins = newline_of(vocabulary), range(0, len(ids), _CHUNK)
        blocks = (begin + _line_ends(ids[begin : begin + _CHUNK], newline) for begin in begins)
        starts = store_entry(key, np.min_scalar_type(len(ids)), blocks)
    return starts


def text_lines(ids: Ids, vocabulary: Vocabulary) -> Iterator[list[str]]:
    """The lines of `ids` without their newlines, some at a time; see `line_chunks`.

    Bytes that are not UTF-8 become lone surrogates.
    """
    for chunk in line_chunks(ids, newline_of(vocabulary)):
        yield vocabulary.decode(chunk, "surrogateescape").split(NEWLINE)[:-1]
