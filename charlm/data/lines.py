"""Texts whose lines are records: a record begins after a newline, with the state zero, and ends with the next."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.data.cache import cached
from charlm.data.reading import NEWLINE, Unit
from charlm.data.vocabulary import Ids, Vocabulary

_CHUNK = 1 << 18
"""Characters that are read at once; more if a line is longer."""


def newline_of(vocabulary: Vocabulary) -> np.integer[Any]:
    """The id of a newline; VocabularyError if it has none."""
    return vocabulary.dtype.type(vocabulary.encode(NEWLINE)[0])


def reset_id_of(unit: Unit, vocabulary: Vocabulary) -> int | None:
    """The id before which the state is set to zero, see `CharLM.reset_id`: a newline if lines are the unit."""
    return int(newline_of(vocabulary)) if unit == "line" else None


def as_records(ids: Ids, reset_id: int | None, *, ended: bool = True) -> Ids:
    """Ids as a model of records reads them: a newline before the first, and after the last if `ended`."""
    if reset_id is None:
        return ids
    newline = np.array([reset_id], ids.dtype)
    return np.concatenate([newline, ids, newline] if ended else [newline, ids])


def line_chunks(ids: Ids, newline: np.integer[Any]) -> Iterator[Ids]:
    """Whole lines, some at a time; the last one ends with a newline too."""
    start = end = 0
    while start < len(ids):
        assert end < len(ids), "the last line has no newline"
        begin, end = end, min(end + _CHUNK, len(ids))
        ends = line_ends(ids[begin:end], newline)
        if len(ends):
            yield np.asarray(ids[start : begin + int(ends[-1])])
            start = begin + int(ends[-1])


def line_ends(chunk: Ids, newline: np.integer[Any]) -> npt.NDArray[np.int64]:
    """Where the lines of a chunk end, behind their newlines."""
    return np.flatnonzero(chunk == newline) + 1


def line_starts(ids: Ids, vocabulary: Vocabulary, key: str) -> Ids:
    """Where each line of a split starts, and where the last one ends, [lines + 1]; key: of the split in the cache."""
    newline, begins = newline_of(vocabulary), range(0, len(ids), _CHUNK)
    blocks = (begin + line_ends(ids[begin : begin + _CHUNK], newline) for begin in begins)
    return cached(f"{key}-starts", np.min_scalar_type(len(ids)), blocks)


def text_lines(ids: Ids, vocabulary: Vocabulary) -> Iterator[list[str]]:
    """The lines of `ids` without their newlines, some at a time; other bytes than UTF-8 as lone surrogates."""
    for chunk in line_chunks(ids, newline_of(vocabulary)):
        yield vocabulary.decode(chunk, "surrogateescape").split(NEWLINE)[:-1]
