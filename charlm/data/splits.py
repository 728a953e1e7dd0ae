"""Cuts a text into splits for training, validation and test, so that no file alone decides the validation score.

A single file is cut in order. Of several files, each gives its end to validation and test; where these ends would be
too short to score, one of several files gives a longer end, and of small files whole ones are taken.

A record's split depends on its hash, so equal records share a split. A record so frequent that it would fill much of a
split is spread over all: its occurrences by multiples of the golden ratio modulo 1 (Weyl 1916). Records in order of
time are cut like running text.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.data.cache import cached, find_entry
from charlm.data.polynomial_hashes import BASE, record_hashes, scattered
from charlm.data.records import record_chunks, record_ends, record_starts
from charlm.data.vocabulary import Ids, Vocabulary, utf8_decoder
from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.formatting import counted

Bounds = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint8]

_ENOUGH_CHARS, _ENOUGH_RECORDS = 1_000, 1
"""Characters, or records, that are enough to score: a state from elsewhere spoils the score of the first few hundred
characters, but not that of records."""
_PIECES = 32
"""Pieces of a split at least, as far as there are files; then they are shorter."""
_SMALL = 16
"""A file of up to so many pieces is small."""
_BLOCK = 16
"""Files that stand together in the list are taken in a random order, because lists may have a period."""
_CHUNK = 1 << 20
"""Bytes that are read at once."""
_BUCKETS = 1 << 20
"""Records are counted by their hashes modulo this number."""
_FREQUENT = 0.1
_LEAST_SHARE = 1e-3
_FEW = 4
"""A record is frequent if it occurs more than `_FEW` times and makes up more than `_FREQUENT` of the smallest split's
share of records. Shares below `_LEAST_SHARE` count as `_LEAST_SHARE`, so that a frequent record outnumbers the rare
ones in its bucket."""


def text_splits(ids: Ids, lengths: Sequence[int], shares: Mapping[str, float], *, key: str) -> dict[str, Ids]:
    """The splits of a running text with files of these lengths; views, or entries `key-NAME` of the cache.

    lengths: in characters. The ids may be their bytes; then a text is cut where its characters would be.
    """
    bounds = cuts(lengths, list(shares.values()))
    if bounds[-1, -1] != len(ids):
        bounds = _byte_places(ids, bounds)
    return {name: _joined(ids, bounds[:, at : at + 2], f"{key}-{name}") for at, name in enumerate(shares)}


def _byte_places(ids: Ids, characters: Bounds) -> Bounds:
    """Where characters with these numbers begin in bytes of UTF-8; the end of the text for one behind the last."""
    wanted = np.unique(characters)
    places = np.full(len(wanted), len(ids))
    decoder, before, at = utf8_decoder(), 0, 0
    for chunk in range(0, len(ids), _CHUNK):
        sizes = Vocabulary("byte").sizes(decoder.decode(ids[chunk : chunk + _CHUNK].tobytes()))
        is_here = (wanted >= before) & (wanted < before + len(sizes))
        places[is_here] = at + (np.cumsum(sizes) - sizes)[wanted[is_here] - before]
        before, at = before + len(sizes), at + int(sizes.sum())
    return places[np.searchsorted(wanted, characters)]


def _joined(ids: Ids, bounds: Bounds, key: str) -> Ids:
    """The pieces of `ids` with these bounds, [pieces, 2], one after another."""
    pieces = bounds[bounds[:, 0] < bounds[:, 1]]
    if not len(pieces):
        return ids[:0]
    if (pieces[:-1, 1] == pieces[1:, 0]).all():
        return ids[pieces[0, 0] : pieces[-1, 1]]
    return cached(key, ids.dtype, (ids[begin:end] for begin, end in pieces))


def cuts(lengths: Sequence[int], shares: Sequence[float], enough: int = _ENOUGH_CHARS) -> Bounds:
    """Where the splits of each file begin and end, [F, S + 1]: places in the text, which is all files joined.

    lengths: of the files, in characters or records. shares: of the splits, training first. enough: the least length of
    a piece. In a single file of N characters, split k ends at floor(N · (share_0 + … + share_k) / (sum of shares)),
    with exact fractions: 0.9 is 9/10.
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
    """How much of each file every split takes, [F, S]: a `piece` at least, or whole files if it is None."""
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


def described(bounds: Bounds, names: Sequence[str]) -> str:
    """Where the splits after the first come from, in words; "" for a text of one file. names: of all splits."""
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


def _some_order(files: int) -> list[int]:
    """A random order within each block of files."""
    numbers = np.arange(files)
    return np.lexsort((scattered(numbers.astype(np.uint64)), numbers // _BLOCK)).tolist()


# Of records


def record_splits(
    ids: Ids,
    vocabulary: Vocabulary,
    end: np.integer[Any],
    shares: Mapping[str, float],
    files: Sequence[int] | None,
    *,
    key: str,
    source: str,
) -> dict[str, Ids]:
    """The records of `ids` [N] as cache entries `key-NAME`, one per split: an `end`, and then records with their ends.

    files: the characters of each file, whose records are cut in order; None: by a hash of the record, unless it is
    frequent. DataError for a split without records.
    """
    found = {name: find_entry(f"{key}-{name}", end.dtype) for name in shares}
    splits: dict[str, Ids] = {name: ids for name, ids in found.items() if ids is not None}
    if len(splits) == len(shares):
        return splits
    say("data", f"{source}: splitting {counted(len(ids), vocabulary.unit)} by records")
    if files is None:
        numbers = _by_hash(ids, vocabulary, end, shares)
        how = ", which takes records by a hash"
    else:
        numbers, how = _in_order(record_starts(ids, end, f"{key}-text"), files, shares), ""
    for name, count in zip(shares, np.bincount(numbers, minlength=len(shares)), strict=True):
        if not count:
            raise DataError(
                f"{source}: none of {counted(len(numbers), 'record')} is in the {name} split{how}; allowed: at least "
                "one per split; add records, change data.split, or set data.valid_source and data.test_source"
            )
    return {
        name: cached(f"{key}-{name}", end.dtype, _records_of(ids, end, numbers == number))
        for number, name in enumerate(shares)
    }


def _records_of(ids: Ids, end: np.integer[Any], takes: npt.NDArray[np.bool_]) -> Iterator[Ids]:
    """An end, and then the records that `takes` [records] says."""
    yield np.array([end])
    begin = 0
    for chunk in record_chunks(ids, end):
        lengths = np.diff(record_ends(chunk, end), prepend=0)
        yield chunk[np.repeat(takes[begin : begin + len(lengths)], lengths)]
        begin += len(lengths)


def _in_order(ends: Ids, files: Sequence[int], shares: Mapping[str, float]) -> Numbers:
    """The number of each record's split, [records]: the end of each file is for the splits after the first."""
    counts = np.diff(np.searchsorted(ends, np.cumsum([0, *files]), side="right"))
    sizes = np.diff(cuts(counts.tolist(), list(shares.values()), _ENOUGH_RECORDS), axis=1)
    return np.repeat(np.tile(np.arange(len(shares), dtype=np.uint8), len(files)), sizes.ravel())


def _by_hash(ids: Ids, vocabulary: Vocabulary, end: np.integer[Any], shares: Mapping[str, float]) -> Numbers:
    """The number of each record's split, [records], by its hash."""
    # By their bytes, so that models of characters and of bytes are scored on the same records.
    end_byte = vocabulary.bytes_of(np.array([end]))
    chunks = record_chunks(ids, end)
    hashes = np.concatenate([record_hashes(vocabulary.bytes_of(chunk), end_byte) for chunk in chunks])
    buckets = (hashes & np.uint64(_BUCKETS - 1)).astype(np.uint32)
    counts = np.bincount(buckets)
    smallest = max(min(shares.values()) / sum(shares.values()), _LEAST_SHARE)
    for bucket in np.flatnonzero(counts > max(_FREQUENT * smallest * len(hashes), _FEW)):
        (places,) = np.nonzero(buckets == bucket)
        hashes[places] += np.arange(len(places), dtype=np.uint64) * BASE
    bounds = np.cumsum(list(shares.values()))
    place = (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53 * bounds[-1]  # of 53 bits, which a float64 holds
    return np.searchsorted(bounds, place, side="right").clip(max=len(bounds) - 1).astype(np.uint8)
