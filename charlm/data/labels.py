"""The labels of lines, `label<SEPARATOR>record`: the label ends where the separator first occurs."""

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.data.cache import find_entry, store_entry
from charlm.data.line_split import Ids, Starts, line_hashes
from charlm.data.vocabulary import Vocabulary
from charlm.errors import CheckpointError, DataError

Labels = dict[str, int]
"""Label → lines of the train split that have it, the most frequent first."""

MOST_LABELS = 1000
LONGEST_LABEL = 100
LABEL_ADVICE = "a label, {!r} and the record in every line"
_DOUBT = "is data.label_separator right?"


class LabelCounter:
    """Checks that every line of a text has a label, and counts those of the lines for training, in one pass."""

    def __init__(self, separator: str, vocabulary: Vocabulary, source: str) -> None:
        self._separator, self._vocabulary, self._source = separator, vocabulary, source
        self._lines = 0
        self._found: dict[int, tuple[str, int]] = {}
        """Hash → label, and how many lines have it."""

    def see(self, chunk: Ids, ends: Starts, counted: npt.NDArray[np.bool_]) -> None:
        """Read the next lines, which end at `ends`. DataError for a line without a label, or for too many labels."""
        starts = np.r_[0, ends[:-1]]
        found = label_ends(chunk, ends, separator_ids(self._separator, self._vocabulary))
        lengths = found - starts
        if (wrong := np.flatnonzero((found < 0) | (lengths > LONGEST_LABEL))).size:
            first = int(wrong[0])
            raise self._fault(self._lines + first + 1, chunk[starts[first] : ends[first] - 1], bool(found[first] < 0))
        self._count(chunk, starts[counted], lengths[counted])
        self._lines += len(ends)

    def labels(self) -> Labels:
        """The labels of all lines that were counted."""
        return dict(sorted(self._found.values(), key=lambda pair: (-pair[1], pair[0])))

    def _count(self, chunk: Ids, starts: Starts, lengths: npt.NDArray[np.int64]) -> None:
        hashes = line_hashes(stretches(chunk, starts, lengths), np.cumsum(lengths), self._vocabulary)
        kinds, firsts, counts = np.unique(hashes, return_index=True, return_counts=True)
        for kind, first, count in zip(kinds.tolist(), firsts, counts.tolist(), strict=True):
            ids = chunk[starts[first] : starts[first] + lengths[first]]
            name, before = self._found.get(kind) or (decoded(ids, self._vocabulary), 0)
            self._found[kind] = name, before + count
            if len(self._found) > MOST_LABELS:
                some = ", ".join(repr(name) for name, _ in list(self._found.values())[:3])
                raise DataError(
                    f"{self._source}: found more than {MOST_LABELS:,} labels, among them {some}; allowed: "
                    f"{MOST_LABELS:,} at most; {_DOUBT}"
                )

    def _fault(self, number: int, ids: Ids, lacks: bool) -> DataError:
        line = decoded(ids[:60], self._vocabulary)
        shown = f"{line!r}{' …' if len(ids) > 60 else ''}"
        if lacks:
            return DataError(
                f"{self._source}: line {number:,}: found {shown}; allowed: {LABEL_ADVICE.format(self._separator)}; "
                f"correct the line; {_DOUBT}"
            )
        return DataError(
            f"{self._source}: line {number:,}: found {shown} with a label of more than {LONGEST_LABEL} characters; "
            f"allowed: {LONGEST_LABEL} at most; {_DOUBT}"
        )


def separator_ids(separator: str, vocabulary: Vocabulary) -> npt.NDArray[Any] | None:
    """The ids of the separator; None if the vocabulary lacks it, so that no text contains it."""
    return None if vocabulary.unknown(separator) else vocabulary.encode(separator)


def label_ends(chunk: Ids, ends: Starts, separator: npt.NDArray[Any] | None) -> npt.NDArray[np.int64]:
    """Where the separator first occurs in each line, −1 where it does not; the lines end at `ends`."""
    if separator is None:
        return np.full(len(ends), -1)
    found = np.flatnonzero(chunk[: max(len(chunk) - len(separator) + 1, 0)] == separator[0])
    for offset, symbol in enumerate(separator[1:], start=1):
        found = found[chunk[found + offset] == symbol]
    first = np.append(found, len(chunk))[np.searchsorted(found, np.r_[0, ends[:-1]])]
    return np.where(first < ends, first, -1)


def without_labels(chunk: Ids, ends: Starts, separator: npt.NDArray[Any] | None) -> tuple[Ids, Starts]:
    """The lines without their labels and separators, and where each ends; those without a label as they are."""
    starts = label_ends(chunk, ends, separator)
    starts = np.where(starts < 0, np.r_[0, ends[:-1]], starts + (0 if separator is None else len(separator)))
    lengths = ends - starts
    return stretches(chunk, starts, lengths), np.cumsum(lengths)


def stretches(chunk: Ids, starts: Starts, lengths: Starts) -> Ids:
    """Stretches of `chunk`, one behind the other."""
    shifts = starts - (np.cumsum(lengths) - lengths)
    return chunk[np.repeat(shifts, lengths) + np.arange(lengths.sum())]


def decoded(ids: Ids, vocabulary: Vocabulary) -> str:
    """The text of the ids; bytes that are not UTF-8 as lone surrogates, so that the text has these ids again."""
    if vocabulary.level == "byte":
        return bytes(ids.tolist()).decode("utf-8", "surrogateescape")
    return vocabulary.decode(ids.tolist())


def find_labels(key: str) -> Labels | None:
    """The labels of a cache entry; None if it is missing."""
    entry = find_entry(key)
    return None if entry is None else json.loads(bytes(entry))


def store_labels(key: str, labels: Labels) -> None:
    """Write the labels into the cache."""
    data = np.frombuffer(json.dumps(labels).encode(), np.uint8)
    store_entry(key, data.dtype, [data])


def labels_from_json(value: object) -> Labels:
    """Labels as a checkpoint keeps them; CheckpointError for anything that `LabelCounter` cannot have counted."""
    if isinstance(value, dict) and all(type(count) is int and count > 0 for count in value.values()):
        return value
    raise CheckpointError("labels: not a table of labels and numbers")
