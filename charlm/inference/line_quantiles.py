"""How surprising the lines of a text are: quantiles of their scores, and limits that are given as such."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from charlm.data.reading import NEWLINE
from charlm.errors import DataError
from charlm.inference.evaluation import evaluate
from charlm.inference.line_scores import LineScorer, Unknown, line_network
from charlm.inference.trained import TrainedModel
from charlm.system.formatting import bits_to_nats

PERCENTS = np.array([*range(10), *range(10, 991, 10), *range(991, 1001)]) / 10
"""0 to 100 by 1, and by 0.1 below 1 and above 99."""
_MOST_CHARS = 2**20
"""Characters of the validation text that are scored if the checkpoint does not hold the quantiles."""
_LIMIT = re.compile(r"(?P<percentile>p)?(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>bits|nats)?", re.ASCII)


def line_quantiles(line_nats: npt.NDArray[np.floating[Any]]) -> list[float]:
    """The quantiles at PERCENTS of the nats per character of lines, to five digits."""
    return [float(f"{nats:.5g}") for nats in np.quantile(line_nats, PERCENTS / 100)]


@dataclass(frozen=True)
class Limit:
    """A bound on a line's score, per character."""

    number: float
    unit: Literal["bits", "nats", "percentile"]

    @classmethod
    def parse(cls, text: str) -> "Limit":
        """The limit that 3.2, 3.2bits, 2.1nats or p99 stands for; a bare number is one of bits. ValueError."""
        found = _LIMIT.fullmatch(text)
        if not found or (found["percentile"] and (found["unit"] or float(found["number"]) > 100)):
            raise ValueError(
                f"found {text!r}; allowed: bits per character (3.2 or 3.2bits), nats per character (2.1nats), or a "
                "percentile of the validation lines, p0 to p100 (p99)"
            )
        number = float(found["number"])
        if found["percentile"]:
            return cls(number, "percentile")
        return cls(number, "nats" if found["unit"] == "nats" else "bits")

    def nats(self, trained: TrainedModel, option: str, label: str | None = None) -> float:
        """The limit in nats per character; DataError, which begins with the option, if a percentile is not known.

        label: percentiles are those of the validation lines with this label, given the label.
        """
        if self.unit == "percentile":
            quantiles = _quantiles_of(trained, label, f"{option} p{self.number:g}")
            return float(np.interp(self.number, PERCENTS, quantiles))
        return bits_to_nats(self.number) if self.unit == "bits" else self.number


def _quantiles_of(trained: TrainedModel, label: str | None, wanted_by: str) -> Sequence[float]:
    """The quantiles in the checkpoint, else those of the validation lines, which are then scored."""
    kept = trained.progress.get("line_quantiles") if label is None else None
    if isinstance(kept, list) and len(kept) == len(PERCENTS) and all(isinstance(nats, float) for nats in kept):
        return kept
    try:
        return line_quantiles(_validation_lines(trained) if label is None else _labeled_lines(trained, label))
    except DataError as error:
        raise DataError(
            f"{wanted_by}: the checkpoint holds no scores of validation lines, and they cannot be found now ({error}); "
            "allowed: bits or nats per character, such as 3.2bits"
        ) from None


def _validation_lines(trained: TrainedModel) -> npt.NDArray[np.float64]:
    """Nats per character of the first lines of the validation text; DataError if there are none any more."""
    network, [newline] = line_network(trained), trained.vocabulary.encode(NEWLINE)
    ids = np.asarray(trained.split("valid")[:_MOST_CHARS])
    lines = np.flatnonzero(ids == newline)
    nats = None
    if len(lines) > 1:
        nats = evaluate(network, ids[lines[0] : lines[-1] + 1], trained.device, per_line=True).line_nats
    if nats is None:
        raise DataError("the validation text has no whole line")
    return nats


def _labeled_lines(trained: TrainedModel, label: str) -> npt.NDArray[np.float64]:
    """Nats per character, given the label, of the first validation lines that have it; DataError if none has."""
    prefix = trained.label_prefix(label)
    text = trained.vocabulary.decode(trained.split("valid")[:_MOST_CHARS].tolist(), "surrogateescape")
    whole_lines = text.split(NEWLINE)[1:-1]
    lines = [f"{line.removeprefix(prefix)}\n" for line in whole_lines if line.startswith(prefix)]
    if not lines:
        raise DataError("no validation line has the label")
    block = "".join(lines).encode("utf-8", "surrogateescape")
    scorer = LineScorer(trained, "validation lines", Unknown(), label=label)
    return np.array([line.nats_per_char for lines in scorer.scores([block]) for line in lines])
