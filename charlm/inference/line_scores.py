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

    Every character counts, the newline that ends the line too. The model reads a newline before each line, from the
    zero state, even if it was trained on running text; VocabularyError if it has never seen one.

    VocabularyError, after the lines before it, for a line with characters that the model does not know; `name` is that
    of the text, for the error. skip_unknown: leave these characters out. unknown_nats: each counts as a character of
    this score, and the model does not read it.
    """
    vocabulary, newline = trained.vocabulary, trained.newline
    is_tolerant, number = skip_unknown or unknown_nats is not None, 0
    for lines in blocks:
        texts, ids, known, error = [], [], [], None
        for text in lines:
            line_ids, is_known = _ids(text, vocabulary)
            if not (is_tolerant or is_known.all()):
                where = f"{name}, line {number + len(ids) + 1}"
                ways_out = "; --skip-unknown leaves others out, --unknown-as BITS counts them"
                error = vocabulary.unknown_error(vocabulary.unknown(text), where, ways_out)
                break
            texts.append(text)
            ids.append(as_records(line_ids[is_known].astype(vocabulary.dtype), newline))
            known.append(np.append(is_known, True))
        scores = []
        for text, is_known, nats in zip(texts, known, score_texts(trained.network, ids), strict=True):
            number += 1
            if unknown_nats is not None:
                known_nats, nats = nats, np.full(len(is_known), unknown_nats, np.float32)
                nats[is_known] = known_nats
            unknown = "" if is_known.all() else vocabulary.unknown(text)
            scores.append(LineScore(number, text, nats, unknown))
        yield scores
        if error:
            raise error


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
