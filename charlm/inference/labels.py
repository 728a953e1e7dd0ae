"""Labels of lines: the likeliest one by a model, and whether a model knows the labels at all."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from charlm.data.records import as_records, end_id
from charlm.data.vocabulary import Ids
from charlm.errors import DataError
from charlm.inference.seen import seen_records
from charlm.inference.texts import score_texts
from charlm.model import Network
from charlm.system.console import say

if TYPE_CHECKING:
    from charlm.inference.trained import TrainedModel

_LEAST_P = 0.01
"""Where the training text has labels, their probability together is far higher, and so is a separator's after one."""
_READ, _LISTED = 10_000, 20
"""Records that are searched for labels, and how many labels an error lists at most."""


def likeliest_labels(
    model: Network, lines: Sequence[Ids], labels: Sequence[Ids], end: int, *, equal_priors: bool
) -> list[tuple[int, float]]:
    """The place of each line's likeliest label, and its probability among these; see `TrainedModel.classify`.

    labels: with their separators. end: the id before and after a record.
    """
    records = [as_records(np.concatenate([label, line]), end) for line in lines for label in labels]
    starts = [len(label) if equal_priors else 0 for label in labels] * len(lines)
    sums = []
    for nats, start in zip(score_texts(model, records), starts, strict=True):
        sums.append(nats[start:].sum(dtype=np.float64))
    nats_NK = np.array(sums).reshape(len(lines), len(labels))
    relative_NK = np.exp(nats_NK.min(1, keepdims=True) - nats_NK)
    p_NK = relative_NK / relative_NK.sum(1, keepdims=True)
    return [*zip(p_NK.argmax(1).tolist(), p_NK.max(1).tolist(), strict=True)]


def check_labels(trained: "TrainedModel", labels: Sequence[str], separator: str) -> None:
    """DataError for labels with which no record that the weights were trained on begins.

    For running text, and where a training text cannot be read, says if the model does not expect the labels.
    """
    vocabulary, records = trained.vocabulary, trained.config.data.records
    try:
        seen, unread = trained.seen if records else ([], [])
    except DataError:
        seen, unread = [], []
    if seen:
        beginnings = {}
        for label in labels:
            ids = vocabulary.encode(vocabulary.canonical(label + separator))
            beginnings[label] = vocabulary.decode(ids, "surrogateescape")  # where rare characters are one symbol
        missing = _never_begun(beginnings, seen_records(seen, vocabulary, records))
        if not missing:
            return
        if not unread:
            allowed = _described(separator, itertools.islice(seen_records(seen, vocabulary, records), _READ))
            found = f"{', '.join(map(repr, missing))} before {separator!r}"
            raise DataError(f"--labels: found {found}; no record of the training text begins so; allowed: {allowed}")
    _say_if_unexpected(trained, labels, separator)


def _never_begun(beginnings: dict[str, str], records: Iterable[str]) -> list[str]:
    """The labels with whose beginning no record begins."""
    sought = tuple(beginnings.values())
    for record in records:
        if record.startswith(sought):
            sought = tuple(beginning for beginning in sought if not record.startswith(beginning))
            if not sought:
                break
    return [label for label, beginning in beginnings.items() if beginning in sought]


def _described(separator: str, records: Iterable[str]) -> str:
    """What stands before the separator in records, if it is of few kinds, as labels are."""
    known = Counter(record.partition(separator)[0] for record in records if separator and separator in record)
    if not 0 < len(known) <= _LISTED:
        return f"what is before {separator!r} at the start of its records"
    return ", ".join(repr(label) for label, _ in known.most_common())


def _say_if_unexpected(trained: "TrainedModel", labels: Sequence[str], separator: str) -> None:
    """Say so if the model does not expect the separator after a label, or none of the labels at the start of a line."""
    vocabulary = trained.vocabulary
    end = end_id(vocabulary, trained.config.data.records)
    of_labels = [vocabulary.encode(vocabulary.canonical(label)) for label in labels]
    beginnings = [np.concatenate([ids, vocabulary.encode(separator)]) for ids in of_labels]
    nats = score_texts(trained.network, [as_records(ids, end, ended=False) for ids in beginnings])
    unexpected = []
    for label, ids, own in zip(labels, of_labels, nats, strict=True):
        if separator and np.exp(-own[len(ids)]) < _LEAST_P:
            unexpected.append(repr(label))
    p = sum(float(np.exp(-own.sum())) for own in nats)
    if unexpected:
        where = f"{separator!r} after {', '.join(unexpected)}"
        say("labels", f"the model does not expect {where}; see --labels and --separator")
    elif p < _LEAST_P:
        say("labels", f"their probability at the start of a line is {p:.1g} together; see --labels")
