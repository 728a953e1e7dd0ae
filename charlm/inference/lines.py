"""Lines as they come, each by itself, many side by side: their scores, limits of scores, and their labels."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from charlm.data.lines import LABEL_ADVICE
from charlm.data.reading import NEWLINE, as_in_training, whole_lines
from charlm.data.vocabulary import UNKNOWN, Ids, Vocabulary, code_points, describe_characters
from charlm.errors import DataError, VocabularyError
from charlm.inference.dynamic import Adaptation, Rule, gradient_rms
from charlm.inference.evaluation import PERCENTS, Cut, line_quantiles, scored_windows
from charlm.inference.labels import Classification
from charlm.inference.options import Limit
from charlm.inference.texts import score_texts
from charlm.inference.trained import TrainedModel
from charlm.system.formatting import bits_to_nats

LINE_ADAPTATION = Adaptation(lr=0.00001, decay=0.01, steps=64)
"""How fast a model learns from lines, chosen on 12,000 lines of another log (benchmarks/anomalies.py --seed 3).

At lr 0.00005 and decay 0.0005 the weights drift: after some thousand lines the scores are worse than without learning.
"""
_SEGMENT_LINES = 16
_SEGMENT_BYTES = 1 << 14
"""A segment ends earlier with the line that fills so many bytes."""
_MOST_CHARS = 2**20
"""Characters of the validation text that are scored if the checkpoint does not hold the quantiles."""


@dataclass(frozen=True)
class LineScore:
    """The score of a line. Its characters are those of the line and its newline."""

    number: int
    """1 for the first line."""
    text: bytes
    """Without its newline."""
    chars: int
    """Number of characters scored."""
    nats: float
    """Their cross-entropy, summed in float64."""
    per_char_nats: npt.NDArray[np.float32] | None
    """The cross-entropy of each, [chars]; None unless asked for."""

    @property
    def nats_per_char(self) -> float:
        return self.nats / self.chars


def score_lines(
    trained: TrainedModel,
    blocks: Iterable[bytes],
    name: str,
    *,
    skip_unknown: bool = False,
    unknown_nats: float | None = None,
    label: str | None = None,
    per_char: bool = False,
    adaptation: Adaptation | None = None,
) -> Iterator[list[LineScore]]:
    """Yield the scores of the lines that end in each block of bytes, in order.

    Every character counts, the newline that ends the line too. The model reads a newline before each line, from the
    zero state, even if it was trained on running text; VocabularyError if it has never seen one.

    VocabularyError, after the lines before it, for a line with characters that the model does not know; `name` is that
    of the text, for the error. skip_unknown: leave these characters out. unknown_nats: each counts as a character of
    this score, and the model does not read it.

    label: score the lines given that this is their label; LabelError if the model does not know it. adaptation: learn
    from the lines that have been scored, see `_Learner`; DataError if the training text has changed or is gone.
    """
    _check_newline(trained)
    vocabulary, unit = trained.vocabulary, trained.config.data.unit
    prefix = vocabulary.encode("" if label is None else trained.label_prefix(label))
    newline = vocabulary.encode(NEWLINE)
    learner = _Learner(trained, adaptation) if adaptation else None
    is_tolerant, number = skip_unknown or unknown_nats is not None, 0
    with learner.rule.restoring() if learner else contextlib.nullcontext():
        for block in whole_lines(as_in_training(blocks, vocabulary.level, unit, name)):
            for lines in learner.segments(block, len(prefix)) if learner else [block]:
                ids, known, error = [], [], None
                for line in lines:
                    line_ids, is_known = _ids(line, vocabulary)
                    if not (is_tolerant or is_known.all()):
                        error = _unknown(trained, f"{name}, line {number + len(ids) + 1}", line)
                        break
                    ids.append(np.concatenate([newline, prefix, line_ids[is_known].astype(newline.dtype), newline]))
                    known.append(np.append(is_known, True))
                scores = []
                lines_nats = score_texts(trained.network, ids, trained.device)
                for line, is_known, nats in zip(lines, known, lines_nats, strict=False):
                    number += 1
                    line_nats = np.full(len(is_known), unknown_nats or 0, np.float32)
                    line_nats[is_known] = nats[len(prefix) :]
                    if skip_unknown:
                        line_nats = line_nats[is_known]
                    total_nats = float(line_nats.sum(dtype=np.float64))
                    chars_nats = line_nats if per_char else None
                    scores.append(LineScore(number, line, len(line_nats), total_nats, chars_nats))
                if learner:
                    learner.read(ids)
                yield scores
                if error:
                    raise error


def _ids(line: bytes, vocabulary: Vocabulary) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """The ids of a line's characters, and which of the characters it knows."""
    if vocabulary.level == "byte":
        ids = np.frombuffer(line, np.uint8)
        return ids, np.ones(len(ids), bool)
    ids = vocabulary.id_of_code_point[code_points(line.decode("utf-8", "surrogateescape"))]
    return ids, ids != UNKNOWN


def _unknown(trained: TrainedModel, where: str, line: bytes) -> VocabularyError:
    """The error for a line's unknown characters; "surrogateescape" has made U+DC80 … U+DCFF of bytes not UTF-8."""
    unknown = trained.vocabulary.unknown(line.decode("utf-8", "surrogateescape"))
    raw = [f"byte 0x{ord(c) - 0xDC00:02X} (not UTF-8)" for c in unknown if "\udc80" <= c <= "\udcff"]
    others = [c for c in unknown if not "\udc80" <= c <= "\udcff"]
    more = f" and {len(raw) - 8} more such bytes" if len(raw) > 8 else ""
    listed = ", ".join([*([describe_characters(others)] if others else []), *raw[:8]]) + more
    ways_out = "; --skip-unknown leaves others out, --unknown-as BITS counts them"
    return trained.vocabulary.unknown_error(unknown, where, ways_out, listed=listed)


def _check_newline(trained: TrainedModel) -> None:
    if trained.vocabulary.unknown(NEWLINE):
        raise VocabularyError(
            f"{trained.path}: the model has never seen a newline, where a line begins; allowed: a model of a text of "
            "several lines; leave out --lines"
        )


class _Learner:
    """Learns from one segment of lines after another, by the rule of dynamic evaluation.

    What a segment holds depends on the lines alone, not on when they come. The lines of a segment are read side by
    side, in windows of `adaptation.steps`, with a step of the weights after each window.
    """

    def __init__(self, trained: TrainedModel, adaptation: Adaptation) -> None:
        self._newline = int(trained.vocabulary.encode(NEWLINE)[0])
        self._network = trained.network.resetting_at(self._newline)
        self._device, self._steps = trained.device, adaptation.steps
        train_ids = trained.training_splits("--dynamic")["train"]
        sizes = gradient_rms(self._network, train_ids, self._device, steps=self._steps, streams=_SEGMENT_LINES)
        self.rule = Rule(self._network, sizes, adaptation)
        self._ids: list[Ids] = []
        self._bytes = 0

    def segments(self, lines: list[bytes], more_bytes: int) -> Iterator[list[bytes]]:
        """Yield the lines of each segment, for the caller to score and `read`; learn between segments."""
        segment: list[bytes] = []
        for line in lines:
            segment.append(line)
            self._bytes += more_bytes + len(line) + 1
            if len(self._ids) + len(segment) == _SEGMENT_LINES or self._bytes >= _SEGMENT_BYTES:
                yield segment
                self._learn()
                segment = []
        if segment:
            yield segment

    def read(self, lines: list[Ids]) -> None:
        """Take the ids of lines that have been scored, each with a newline before and after it."""
        self._ids += [ids[bool(self._ids or index) :] for index, ids in enumerate(lines)]

    def _learn(self) -> None:
        """Learn from the segment, and begin the next one."""
        ids = np.concatenate(self._ids)
        cut = Cut.of_lines(ids, _SEGMENT_LINES, self._newline)
        for _ in self.rule.learning_from(scored_windows(self._network, ids, self._device, cut, steps=self._steps)):
            pass
        self._ids, self._bytes = [], 0


# Limits


def limit_nats(limit: Limit, trained: TrainedModel, option: str, label: str | None = None) -> float:
    """A limit in nats per character; DataError, which begins with the option, if a percentile is not known.

    label: percentiles are those of the validation lines with this label, given the label. The checkpoint has the
    percentiles of all lines; others are computed from the text.
    """
    if limit.unit != "percentile":
        return bits_to_nats(limit.number) if limit.unit == "bits" else limit.number
    quantiles = trained.progress.get("line_quantiles") if label is None else None
    if not (isinstance(quantiles, list) and [*map(type, quantiles)] == [float] * len(PERCENTS)):
        try:
            quantiles = line_quantiles(_validation_scores(trained, label))
        except DataError as error:
            raise DataError(
                f"{option} p{limit.number:g}: the checkpoint holds no scores of validation lines, and they cannot "
                f"be found now ({error}); allowed: bits or nats per character, such as 3.2bits"
            ) from None
    return float(np.interp(limit.number, PERCENTS, quantiles))


def _validation_scores(trained: TrainedModel, label: str | None) -> npt.NDArray[np.float64]:
    """Nats per character of the first validation lines, or of those with the label, given it; DataError if none."""
    _check_newline(trained)
    prefix = "" if label is None else trained.label_prefix(label)
    text = trained.vocabulary.decode(trained.split("valid")[:_MOST_CHARS].tolist(), "surrogateescape")
    lines = [f"{line.removeprefix(prefix)}\n" for line in text.split(NEWLINE)[1:-1] if line.startswith(prefix)]
    if not lines:
        raise DataError(
            "the validation text has no whole line" if label is None else "no validation line has the label"
        )
    block = "".join(lines).encode("utf-8", "surrogateescape")
    scores = score_lines(trained, [block], "validation lines", label=label)
    return np.array([line.nats_per_char for lines in scores for line in lines])


# Labels


@dataclass(frozen=True)
class ClassifiedLines:
    """A batch of lines and their predicted labels."""

    lines: list[str]
    """Without their labels."""
    true: list[str] | None
    """Their labels, if they have labels."""
    predicted: Classification
    unknown: str
    """The characters that were left out."""


def classify_lines(
    trained: TrainedModel, blocks: Iterable[list[str]], name: str, *, labeled: bool = False, skip_unknown: bool = False
) -> Iterator[ClassifiedLines]:
    """Classify lines that come some at a time.

    labeled: the lines begin with their labels; DataError for a line without one. skip_unknown: leave out characters
    that the model does not know; else they are a VocabularyError. `name` is that of the text, for errors.
    """
    number = 0
    for lines in blocks:
        locations = [f"{name}: line {number + index:,}" for index in range(1, len(lines) + 1)]
        true = None
        if labeled:
            separator = trained.config.data.label_separator or ""
            pairs = [line.partition(separator) for line in lines]
            for location, line, (_, has_label, _) in zip(locations, lines, pairs, strict=True):
                if not has_label:
                    raise DataError(f"{location}: found {line[:60]!r}; allowed: {LABEL_ADVICE.format(separator)}")
            true, lines = [label for label, _, _ in pairs], [record for _, _, record in pairs]
        unknown, known = trained.vocabulary.unknown("".join(lines)), lines
        if unknown:
            located = zip(lines, locations, strict=True)
            known = [trained.without_unknown(*each, skip_unknown=skip_unknown)[0] for each in located]
        yield ClassifiedLines(lines, true, trained.classify(known), unknown)
        number += len(lines)
