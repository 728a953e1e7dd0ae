"""Labels for lines as they arrive, and how many of them are right if the lines have labels already."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from charlm.data.labels import LABEL_ADVICE
from charlm.errors import DataError
from charlm.inference.labels import Classification
from charlm.inference.trained import TrainedModel


@dataclass
class Confusion:
    """Which labels were found in place of which."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(true label, found label) → lines; for true labels that the model knows."""
    unseen: int = 0
    """Lines with a label that the model has never seen; no answer is right."""

    @property
    def lines(self) -> int:
        return self.counts.total() + self.unseen

    @property
    def accuracy(self) -> float | None:
        """Share of the lines whose label was found; None without lines."""
        right = sum(count for (true, found), count in self.counts.items() if true == found)
        return right / self.lines if self.lines else None

    def table(self) -> dict[str, dict[str, int]]:
        """True label → found label → lines, the most frequent first."""
        totals = Counter[str]()
        for (true, _), count in self.counts.items():
            totals[true] += count
        rows: dict[str, dict[str, int]] = {true: {} for true, _ in totals.most_common()}
        for (true, found), count in self.counts.most_common():
            rows[true][found] = count
        return rows


@dataclass(frozen=True)
class Answers:
    """What was found for some lines."""

    lines: list[str]
    """Without their labels."""
    true: list[str] | None
    """Their labels, if they have labels."""
    found: Classification


@dataclass
class LineClassifier:
    """Answers for lines, some at a time. `where` names the lines in errors."""

    trained: TrainedModel
    where: str
    labeled: bool = False
    """Whether the lines begin with their labels."""
    skip_unknown: bool = False
    """Leave out characters that the model does not know; else they are a VocabularyError."""
    confusion: Confusion = field(default_factory=Confusion)
    """Of the lines so far, if they have labels."""
    skipped: set[str] = field(default_factory=set)
    """The characters that were left out so far."""
    _number: int = 0

    def answers(self, some_lines: Iterable[list[str]]) -> Iterator[Answers]:
        """Classify lines that come some at a time; DataError for a line without the label that it should have."""
        for lines in some_lines:
            true = None
            if self.labeled:
                true, lines = map(list, zip(*map(self._parted, range(len(lines)), lines), strict=True))
            found = self.trained.classify(self._known(lines))
            if true:
                self._count(true, found.best)
            yield Answers(lines, true, found)
            self._number += len(lines)

    def _parted(self, place: int, line: str) -> tuple[str, str]:
        separator = self.trained.config.data.label_separator
        assert separator is not None
        label, found, record = line.partition(separator)
        if not found:
            raise DataError(f"{self._place(place)}: found {line[:60]!r}; allowed: {LABEL_ADVICE.format(separator)}")
        return label, record

    def _known(self, lines: list[str]) -> list[str]:
        unknown = self.trained.vocabulary.unknown("".join(lines))
        if not unknown:
            return lines
        self.skipped |= set(unknown)
        return [
            self.trained.known(line, self._place(place), skip_unknown=self.skip_unknown)[0]
            for place, line in enumerate(lines)
        ]

    def _count(self, true: list[str], found: list[str]) -> None:
        for pair in zip(true, found, strict=True):
            if pair[0] in self.trained.labels:
                self.confusion.counts[pair] += 1
            else:
                self.confusion.unseen += 1

    def _place(self, place: int) -> str:
        return f"{self.where}: line {self._number + place + 1:,}"
