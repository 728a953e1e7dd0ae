"""Lines as they come: the score of each by itself, many side by side."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from charlm.data.lines import as_records
from charlm.data.vocabulary import UNKNOWN, Ids, Vocabulary, code_points
from charlm.inference.texts import score_texts
from charlm.inference.trained import TrainedModel
from charlm.system.formatting import bits_to_nats

_ROUNDING_NATS = bits_to_nats(1e-4)
"""The last digit that is printed. Equal lines differ by less: their rounding depends on the lines read beside them."""


@dataclass(frozen=True)
class LineScore:
    """The score of a line. Its characters are those of the line and its newline."""

    number: int
    """1 for the first line."""
    text: str
    """Without its newline. Bytes that are not UTF-8 are lone surrogates, as from Python's "surrogateescape"."""
    nats: npt.NDArray[np.float32]
    """The cross-entropy of each character."""
    unknown: str
    """Its characters that the model does not know, each once."""

    @property
    def nats_sum(self) -> float:
        return float(self.nats.sum(dtype=np.float64))

    @property
    def nats_per_char(self) -> float:
        return self.nats_sum / len(self.nats)

    def is_above(self, limit_nats: float) -> bool:
        """Whether the line has a higher score per character; nan is above every limit."""
        return not self.nats_per_char <= limit_nats + _ROUNDING_NATS


def score_lines(
    trained: TrainedModel,
    blocks: Iterable[list[str]],
    name: str,
    *,
    skip_unknown: bool = False,
    unknown_nats: float | None = None,
) -> Iterator[list[LineScore]]:
    """Yield the scores of the lines of each block, in order; the lines are without their ends, see `whole_lines`.

    The newline that ends the line counts too. The model reads a newline before each line, from the zero state, even if
    it was trained on running text.

    VocabularyError, after the lines before it, for a line with characters that the model does not know, and for a model
    without newlines; `name` is that of the text. skip_unknown: leave these characters out. unknown_nats: each counts as
    a character of this score, and the model does not read it.
    """
    vocabulary, newline = trained.vocabulary, trained.newline
    is_tolerant = skip_unknown or unknown_nats is not None
    number = 0
    for lines in blocks:
        encoded = [_ids(line, vocabulary) for line in lines]
        count = len(lines)
        if not is_tolerant:  # the lines before the first with unknown characters
            count = next((n for n, (_, is_known) in enumerate(encoded) if not is_known.all()), count)
        ids = [line_ids[is_known].astype(vocabulary.dtype) for line_ids, is_known in encoded[:count]]
        scored = score_texts(trained.network, [as_records(each, newline) for each in ids])
        scores = []
        for line, (_, is_known), nats in zip(lines, encoded, scored, strict=False):
            number += 1
            if unknown_nats is not None:
                with_unknown = np.full(len(is_known) + 1, unknown_nats, np.float32)
                with_unknown[np.append(is_known, True)] = nats
                nats = with_unknown
            unknown = "" if is_known.all() else vocabulary.unknown(line)
            scores.append(LineScore(number, line, nats, unknown))
        yield scores
        if count < len(lines):
            where = f"{name}, line {number + 1}"
            ways_out = "; --skip-unknown leaves others out, --unknown-as BITS counts them"
            raise vocabulary.unknown_error(vocabulary.unknown(lines[count]), where, ways_out)


def _ids(line: str, vocabulary: Vocabulary) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """The ids of a line's characters, and which of the characters the model knows."""
    if vocabulary.level == "byte":
        ids = vocabulary.encode(line)
        return ids, np.ones(len(ids), bool)
    ids = vocabulary.id_of_code_point[code_points(line)]
    return ids, ids != UNKNOWN


def percentile_nats(lines: list[LineScore], percentile: float) -> float:
    """The percentile of the nats per character of the lines, one or more: always the score of one of them."""
    return float(np.percentile([line.nats_per_char for line in lines], percentile, method="higher"))
