"""The labels of lines, by a model of lines such as label<TAB>record."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from charlm.data.lines import as_records
from charlm.data.vocabulary import Ids
from charlm.inference.texts import score_texts
from charlm.model import Network

Floats = npt.NDArray[np.float64]


def label_probabilities(
    model: Network, lines: Sequence[Ids], labels: Sequence[Ids], newline: int, *, equal_priors: bool
) -> Floats:
    """p(label | line) for each line and each label, [N, K]; see `TrainedModel.classify`.

    labels: with their separators, as they stand before a line.
    """
    starts = [len(label) if equal_priors else 0 for label in labels] * len(lines)
    both = [np.concatenate([label, line]) for line in lines for label in labels]
    scored = _record_nats(model, both, newline)
    sums = [nats[start:].sum(dtype=np.float64) for nats, start in zip(scored, starts, strict=True)]
    nats_NK = np.array(sums).reshape(len(lines), len(labels))
    relative_NK = np.exp(nats_NK.min(1, keepdims=True) - nats_NK)
    return relative_NK / relative_NK.sum(1, keepdims=True)


def nats_of_ends(model: Network, texts: Sequence[Ids], starts: Sequence[int], newline: int) -> list[float]:
    """The nats of each text from its start on, given what stands before that on the same line."""
    scored = _record_nats(model, texts, newline)
    return [float(nats[start:-1].sum(dtype=np.float64)) for nats, start in zip(scored, starts, strict=True)]


def _record_nats(model: Network, texts: Sequence[Ids], newline: int) -> list[npt.NDArray[np.float32]]:
    """The nats of each character of lines, and of the newlines that end them."""
    return score_texts(model, [as_records(ids, newline) for ids in texts])
