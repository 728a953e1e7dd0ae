"""Many lines from a model of lines, without repeats or without those of the training text."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from charlm.data.labels import separator_ids, without_labels
from charlm.data.line_split import Starts, line_chunks, line_ends, line_hashes
from charlm.data.reading import NEWLINE
from charlm.inference.evaluation import Ids
from charlm.inference.sampling import Choice
from charlm.inference.trained import TrainedModel

_TOGETHER = 64
"""Lines that are written side by side."""
_TRIES = 20
"""Lines that are written for each one wanted, at most."""


@dataclass
class LineSamples:
    """Lines with the seeds from `seed` on, each by itself: `drawn` yields those that are kept."""

    trained: TrainedModel
    prompt: str
    seed: int
    length: int
    choice: Choice
    stop: str = ""
    unique: bool = False
    """Drop repeats."""
    novel: bool = False
    """Drop lines of the training text, whatever their labels; DataError if that has changed or is gone."""
    label: str | None = None
    """The label of all lines, which do not contain it. LabelError if the model lacks it."""
    repeats: int = 0
    """How many repeats were dropped so far."""
    copies: int = 0
    """How many lines of the training text were dropped so far."""
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._prefix = "" if self.label is None else self.trained.label_prefix(self.label)
        splits = self.trained.training_splits("--novel") if self.novel else {}
        self._known = known_lines(splits["train"], self.trained) if splits else np.empty(0, np.uint64)

    def drawn(self, count: int) -> Iterator[tuple[int, str]]:
        """Seed and text of up to `count` lines, without the prompt; fewer if too many had to be dropped."""
        left, tries = count, count * _TRIES if self.unique or self.novel else count
        for begin in range(0, tries, _TOGETHER):
            seeds = range(self.seed + begin, self.seed + min(begin + _TOGETHER, tries))
            prompt = self._prefix + self.prompt
            pieces = self.trained.stream(prompt, seeds, length=self.length, choice=self.choice, stop=self.stop)
            for seed, parts in zip(seeds, zip(*pieces, strict=True), strict=True):
                text = "".join(parts)
                if self._keeps(self.trained.vocabulary.joined(self.prompt, text)):
                    yield seed, text
                    left -= 1
                    if not left:
                        return

    def _keeps(self, line: str) -> bool:
        if self.novel and self._is_known(line):
            self.copies += 1
            return False
        if self.unique and line in self._seen:
            self.repeats += 1
            return False
        if self.unique:
            self._seen.add(line)
        return True

    def _is_known(self, line: str) -> bool:
        vocabulary = self.trained.vocabulary
        ids = np.append(vocabulary.encode(self._prefix + line), vocabulary.encode(NEWLINE))
        [wanted] = _hashes(ids, np.array([len(ids)]), self.trained)
        place = np.searchsorted(self._known, wanted)
        return bool(place < len(self._known) and self._known[place] == wanted)


def known_lines(ids: Ids, trained: TrainedModel) -> npt.NDArray[np.uint64]:
    """The hashes of the lines of a split, without their labels, sorted; 8 bytes for each, and twice that meanwhile."""
    newline = ids[0]
    chunks = line_chunks(ids[1:], newline)
    hashes = [_hashes(chunk, line_ends(chunk, newline), trained) for chunk in chunks]
    found = np.concatenate([np.empty(0, np.uint64), *hashes])
    found.sort()
    return found


def _hashes(lines: Ids, ends: Starts, trained: TrainedModel) -> npt.NDArray[np.uint64]:
    """The hashes of lines without their labels; they end at `ends`."""
    vocabulary, separator = trained.vocabulary, trained.config.data.label_separator
    if separator is not None:
        lines, ends = without_labels(lines, ends, separator_ids(separator, vocabulary))
    return line_hashes(lines, ends, vocabulary)
