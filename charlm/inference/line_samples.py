"""Many lines from a model of lines, without repeats or without those of the training text."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from charlm.data.labels import separator_ids, without_labels
from charlm.data.line_split import Starts, line_chunks, line_ends, line_hashes
from charlm.data.reading import NEWLINE
from charlm.inference.evaluation import Ids
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
    known = _known_lines(trained) if novel else np.empty(0, np.uint64)
    tries, earlier = count * (_TRIES if unique or novel else 1), set[str]()
    for first in range(0, tries, _TOGETHER):
        seeds = range(seed + first, seed + min(first + _TOGETHER, tries))
        pieces = sample_text(trained.network, trained.vocabulary, prefix + prompt, options, seeds)
        for own_seed, parts in zip(seeds, zip(*pieces, strict=True), strict=True):
            text = "".join(parts)
            line = trained.vocabulary.joined(prompt, text)
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


def _known_lines(trained: TrainedModel) -> npt.NDArray[np.uint64]:
    """The hashes of the lines of the train split, without their labels, sorted: 8 bytes each."""
    ids = trained.training_splits("--novel")["train"]
    newline = ids[0]
    chunks = line_chunks(ids[1:], newline)
    hashes = np.concatenate([np.empty(0, np.uint64), *(_hashes(c, line_ends(c, newline), trained) for c in chunks)])
    hashes.sort()
    return hashes


def _is_in(known: npt.NDArray[np.uint64], trained: TrainedModel, line: str) -> bool:
    ids = np.append(trained.vocabulary.encode(line), trained.vocabulary.encode(NEWLINE))
    [wanted] = _hashes(ids, np.array([len(ids)]), trained)
    place = np.searchsorted(known, wanted)
    return bool(place < len(known) and known[place] == wanted)


def _hashes(lines: Ids, ends: Starts, trained: TrainedModel) -> npt.NDArray[np.uint64]:
    """The hashes of lines without their labels; they end at `ends`."""
    vocabulary, separator = trained.vocabulary, trained.config.data.label_separator
    if separator is not None:
        lines, ends = without_labels(lines, ends, separator_ids(separator, vocabulary))
    return line_hashes(lines, ends, vocabulary)
