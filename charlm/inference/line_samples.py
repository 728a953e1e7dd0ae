"""Many lines from a model of lines, without repeats or without those of the training text."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from charlm.data.lines import text_lines
from charlm.inference.options import SamplingOptions
from charlm.inference.sampling import sample_text
from charlm.inference.trained import TrainedModel

_TOGETHER = 64
"""Lines that are written side by side."""
_TRIES = 20
"""Lines that are written for each one wanted, at most."""


def sample_lines(
    trained: TrainedModel,
    prompt: str,
    options: SamplingOptions,
    seed: int,
    count: int,
    *,
    label: str | None = None,
    unique: bool = False,
    novel: bool = False,
) -> Iterator[tuple[int, str, Literal["new", "repeat", "copy"]]]:
    """Yield the seed of a line, the line without its prompt, and what it is, until `count` are new.

    Lines have the seeds from `seed` on. There are fewer new ones if 20 times as many lines do not hold them.

    label: of all lines, which do not contain it; LabelError if the model lacks it. unique: a line that came before is
    a repeat. novel: a line of the training text is a copy, whatever its label; DataError if that text has changed or
    is gone.
    """
    prefix = "" if label is None else trained.label_prefix(label)
    known = _known_lines(trained) if novel else np.empty(0, np.int64)
    tries, earlier = count * (_TRIES if unique or novel else 1), set[str]()
    for first in range(0, tries, _TOGETHER):
        seeds = range(seed + first, seed + min(first + _TOGETHER, tries))
        pieces = sample_text(trained.network, trained.vocabulary, prefix + prompt, options, seeds)
        for own_seed, pieces_of_line in zip(seeds, zip(*pieces, strict=True), strict=True):
            text = "".join(pieces_of_line)
            line = prompt + text
            if novel and _is_in(known, trained, prefix + line):
                yield own_seed, text, "copy"
            elif unique and line in earlier:
                yield own_seed, text, "repeat"
            else:
                yield own_seed, text, "new"
                earlier.add(line)
                count -= 1
                if not count:
                    return


def _known_lines(trained: TrainedModel) -> npt.NDArray[np.int64]:
    """The hashes of the lines of the train split, without their labels, sorted: 8 bytes each."""
    vocabulary = trained.vocabulary
    ids = trained.training_splits("--novel")["train"][1:]
    hashes = [np.array([hash(_record(line, trained)) for line in lines]) for lines in text_lines(ids, vocabulary)]
    return np.sort(np.concatenate([np.empty(0, np.int64), *hashes]))


def _is_in(known: npt.NDArray[np.int64], trained: TrainedModel, line: str) -> bool:
    line_hash = hash(_record(line, trained))
    index = np.searchsorted(known, line_hash)
    return bool(index < len(known) and known[index] == line_hash)


def _record(line: str, trained: TrainedModel) -> str:
    """A line without its label."""
    separator = trained.config.data.label_separator
    return line if separator is None else line.split(separator, 1)[-1]
