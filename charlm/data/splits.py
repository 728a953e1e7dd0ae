"""Cuts a text into splits for training, validation and test.

running text      One file is cut in order. Of several files, joined, each of up to 31 equal stretches is cut in order,
                  so that no file alone decides the validation score.
records           By their hashes, so that equal records share a split. A record so frequent that it would fill much of
                  a split is spread over all: its occurrences by multiples of the golden ratio modulo 1 (Weyl 1916).
records of a log  Each file is cut in order.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from charlm.data.cache import cached, find_entry
from charlm.data.counting import CountedSource
from charlm.data.polynomial_hashes import BASE, record_hashes
from charlm.data.records import end_id, record_chunks, record_ends, record_starts
from charlm.data.vocabulary import Ids, Vocabulary, utf8_decoder
from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.formatting import counted

Bounds = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint8]
Shares = Mapping[str, float]
"""The share of each split, training first. They need not sum to 1."""

_STRETCHES = 31
"""A prime number, so that stretches do not keep step with files of equal length."""
_ENOUGH_CHARS = 1_000
"""Least length of a piece: a state from elsewhere spoils the score of the first few hundred characters."""
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


def stretch_count(source: CountedSource, shares: Shares) -> int:
    """How many stretches of a running text are cut: so many that each piece of a split is long enough to be scored."""
    files = sum(map(bool, source.lengths))
    if files == 1:
        return 1
    smallest_share = min(shares.values()) / sum(shares.values())
    return min(max(int(smallest_share * source.chars / _ENOUGH_CHARS), 1), _STRETCHES)


def text_splits(ids: Ids, source: CountedSource, shares: Shares, *, key: str) -> dict[str, Ids]:
    """The splits of a running text; views of the ids, or entries `key-NAME` of the cache.

    Bytes are cut where their characters are, so that models of characters and of bytes are scored on the same text.
    """
    chars = source.chars
    stretches = stretch_count(source, shares)
    stretch_ends = [chars * number // stretches for number in range(stretches + 1)]
    bounds = cuts(np.diff(stretch_ends).tolist(), [*shares.values()])
    if chars != len(ids):
        bounds = _byte_places(ids, bounds)
    return {name: _joined(ids, bounds[:, at : at + 2], f"{key}-{name}") for at, name in enumerate(shares)}


def cuts(lengths: Sequence[int], shares: Sequence[float]) -> Bounds:
    """Where the splits of each stretch begin and end, [F, S + 1]: places in the text, which is all stretches joined.

    lengths: of the stretches, in characters or records. shares: of the splits, training first. In a single stretch of N
    characters, split k ends at floor(N · (share_0 + … + share_k) / (sum of shares)), with exact fractions: 0.9 is 9/10.
    The fraction of a character that a stretch leaves goes to the next stretch.
    """
    exact = [Fraction(str(float(share))) for share in shares]
    total = sum(exact)
    assert min(exact) >= 0 < total, f"shares of a split: {shares}"
    ends = [end / total for end in itertools.accumulate(exact, initial=Fraction(0))]
    places = [*itertools.accumulate(lengths, initial=0)]
    taken = []  # before each place, by the splits up to each
    for place in places:
        taken.append([int(place * end) for end in ends])
    # By rounding, a split may end a character before it begins.
    inside = np.maximum.accumulate(np.diff(np.array(taken, np.int64), axis=0), axis=1)
    return np.array(places[:-1])[:, None] + inside


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


# Of records


def record_splits(
    ids: Ids, source: CountedSource, vocabulary: Vocabulary, shares: Shares, *, is_log: bool, key: str
) -> dict[str, Ids]:
    """The records of `ids` [N] as cache entries `key-NAME`, one per split: an end, and then records with their ends.

    is_log: whether each file is cut in order. DataError for a split without records.
    """
    end = end_id(vocabulary, source.separator)
    found = {name: find_entry(f"{key}-{name}", vocabulary.dtype) for name in shares}
    splits: dict[str, Ids] = {name: ids for name, ids in found.items() if ids is not None}
    if len(splits) == len(shares):
        return splits
    say("data", f"{source.source}: splitting {counted(len(ids), vocabulary.unit)} by records")
    if is_log:
        numbers, how = _in_order(record_starts(ids, end, f"{key}-text"), source.lengths, shares), ""
    else:
        numbers, how = _by_hash(ids, vocabulary, end, shares), ", which takes records by a hash"
    for name, count in zip(shares, np.bincount(numbers, minlength=len(shares)), strict=True):
        if not count:
            fault = f"none of {counted(len(numbers), 'record')} is in the {name} split{how}"
            advice = "add records, change data.split, or set data.valid_source and data.test_source"
            raise DataError(f"{source.source}: {fault}; allowed: at least one per split; {advice}")
    return {
        name: cached(f"{key}-{name}", vocabulary.dtype, _records_of(ids, end, numbers == number))
        for number, name in enumerate(shares)
    }


def _records_of(ids: Ids, end: int, takes: npt.NDArray[np.bool_]) -> Iterator[Ids]:
    """An end, and then the records that `takes` [records] says."""
    yield np.array([end])
    begin = 0
    for chunk in record_chunks(ids, end):
        lengths = np.diff(record_ends(chunk, end), prepend=0)
        yield chunk[np.repeat(takes[begin : begin + len(lengths)], lengths)]
        begin += len(lengths)


def _in_order(ends: Ids, files: Sequence[int], shares: Shares) -> Numbers:
    """The number of each record's split, [records]: the end of each file is for the splits after the first."""
    counts = np.diff(np.searchsorted(ends, np.cumsum([0, *files]), side="right"))
    sizes = np.diff(cuts(counts.tolist(), [*shares.values()]), axis=1)
    return np.repeat(np.tile(np.arange(len(shares), dtype=np.uint8), len(files)), sizes.ravel())


def _by_hash(ids: Ids, vocabulary: Vocabulary, end: int, shares: Shares) -> Numbers:
    """The number of each record's split, [records], by its hash."""
    # By their bytes, so that models of characters and of bytes are scored on the same records.
    end_byte = int(vocabulary.symbols[end])  # which is ASCII
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
