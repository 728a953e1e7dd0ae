"""What weights were trained on: the text of their run, and those of the runs that they started from."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from charlm.config.schema import DataConfig
from charlm.data.corpus import load_unchanged_corpus
from charlm.data.encoded import EncodedText
from charlm.data.reading import LINES
from charlm.data.records import end_id, record_ends, text_records
from charlm.data.vocabulary import Ids, Vocabulary
from charlm.errors import CharlmError
from charlm.inference.novelty import copied_ngrams, copied_stretches
from charlm.system.formatting import source_name

_COPIED = 200
"""Symbols of a copied stretch that tell that a text was read: phrases that occur twice are shorter."""


class SeenTexts(NamedTuple):
    """What weights were trained on."""

    texts: list[Ids]
    """The training text of each run that can be read."""
    unread: list[str]
    """For each text that cannot be read, a line that says why."""

    def records(self, vocabulary: Vocabulary, separator: str) -> Iterator[str]:
        """The records of these texts; a text may be running text."""
        end = end_id(vocabulary, separator or LINES)
        for text in self.texts:
            begun = text[1:] if text[0] == end else text
            ended = begun if begun[-1] == end else np.append(begun, end)
            yield from itertools.chain.from_iterable(text_records(ended, vocabulary, separator or LINES))


def earlier_texts(listed: Sequence[Any], vocabulary: Vocabulary, run_dir: Path) -> SeenTexts:
    """The texts of earlier runs, as a checkpoint lists them; the vocabulary knows all of them."""
    seen = SeenTexts([], [])
    for earlier in listed:
        name = "a text"
        try:
            data = DataConfig.model_validate(earlier["data"])
            name = source_name(data.source)
            known = {"corpus_sha256": earlier["sha256"]}
            seen.texts.append(load_unchanged_corpus(data, vocabulary, known, run_dir).splits["train"])
        except (LookupError, TypeError, ValidationError):
            seen.unread.append(f"{name} of an earlier run: its record in the checkpoint is damaged")
        except CharlmError as error:
            seen.unread.append(f"{name} of an earlier run: {str(error).partition(';')[0]}")
    return seen


def seen_places(text: EncodedText, seen: SeenTexts, separator: str) -> npt.NDArray[np.bool_]:
    """Which symbols of a text were trained on, [N]: those of long copied stretches, or of copied records.

    separator: of records, in whose ids the text then is; "" for running text.
    """
    if separator:
        known = set(seen.records(text.vocabulary, separator))
        records = itertools.chain.from_iterable(text_records(text.ids, text.vocabulary, separator))
        return np.repeat(
            [record in known for record in records], np.diff(record_ends(text.ids, text.ids[0]), prepend=0)
        )
    places = np.zeros(len(text.ids), bool)
    for start, length in copied_stretches(copied_ngrams(text.ids, seen.texts)):
        places[start : start + length] = length >= _COPIED
    return places
