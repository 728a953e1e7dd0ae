"""Texts of records: each record starts from the zero state, after the end of another, and ends with its own end.

The end of a record is one symbol: the separator, or RECORD_END for a separator of several bytes, see `end_of_record`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.data.cache import cached
from charlm.data.reading import LINES, end_of_record
from charlm.data.vocabulary import Ids, Vocabulary

_CHUNK = 1 << 18
"""Characters that are read at once; more if a record is longer."""


def end_id(vocabulary: Vocabulary, separator: str = LINES) -> np.integer[Any]:
    """The id of the end of a record; VocabularyError if it has none."""
    return vocabulary.dtype.type(vocabulary.encode(end_of_record(separator))[0])


def reset_id_of(separator: str, vocabulary: Vocabulary) -> int | None:
    """The id before which the state is set to zero, see `CharLM.reset_id`; None for running text."""
    return int(end_id(vocabulary, separator)) if separator else None


def as_records(ids: Ids, reset_id: int | None, *, ended: bool = True) -> Ids:
    """Ids as a model of records reads them: an end before the first, and after the last if `ended`."""
    if reset_id is None:
        return ids
    end = np.array([reset_id], ids.dtype)
    return np.concatenate([end, ids, end] if ended else [end, ids])


def record_chunks(ids: Ids, end: np.integer[Any]) -> Iterator[Ids]:
    """Whole records, some at a time; the last one has its end too."""
    start = stop = 0
    while start < len(ids):
        assert stop < len(ids), "the last record has no end"
        begin, stop = stop, min(stop + _CHUNK, len(ids))
        ends = record_ends(ids[begin:stop], end)
        if len(ends):
            yield np.asarray(ids[start : begin + int(ends[-1])])
            start = begin + int(ends[-1])


def record_ends(chunk: Ids, end: np.integer[Any]) -> npt.NDArray[np.int64]:
    """Where the records of a chunk end, behind their end symbols."""
    return np.flatnonzero(chunk == end) + 1


def record_starts(ids: Ids, end: np.integer[Any], key: str) -> Ids:
    """Where each record of a split starts, and the last one ends, [records + 1]; key: of the split in the cache."""
    begins = range(0, len(ids), _CHUNK)
    blocks = (begin + record_ends(ids[begin : begin + _CHUNK], end) for begin in begins)
    return cached(f"{key}-starts", np.min_scalar_type(len(ids)), blocks)


def text_records(ids: Ids, vocabulary: Vocabulary, separator: str) -> Iterator[list[str]]:
    """The records of `ids` without their ends, some at a time; other bytes than UTF-8 as lone surrogates."""
    for chunk in record_chunks(ids, end_id(vocabulary, separator)):
        yield vocabulary.decode(chunk, "surrogateescape").split(end_of_record(separator))[:-1]
