"""What weights were trained on, in their run and those that it started from, and what of a text occurs there.

The n-grams of a text are found by their hashes, in one block of the other texts after another. Memory grows with the
text only; the others may be memory-mapped.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from charlm.config.schema import Config, DataConfig
from charlm.data.corpus import load_unchanged_corpus
from charlm.data.encoded import EncodedText
from charlm.data.polynomial_hashes import BASE, Hashes, stretch_hashes
from charlm.data.records import LINE_END, end_id, record_ends, text_records
from charlm.data.vocabulary import Ids, Vocabulary
from charlm.errors import CharlmError
from charlm.system.formatting import source_name

SEARCHED, NOTED = 5_000_000, 0.005
"""Symbols of a text that are looked for at most, and the share of it that is worth a note."""
COPIED = 200
"""Symbols of a copied stretch that tell that a text was read: phrases that occur twice are shorter."""
NGRAM = 20
"""n: the ids of an n-gram, which charlm calls a window of 20 characters where people read of it."""
_BLOCK = 2**17
"""How many n-grams to hash at once: arrays of 1 MiB stay in a core's cache."""


def seen_records(texts: Iterable[Ids], vocabulary: Vocabulary, separator: str) -> Iterator[str]:
    """The records of texts, each of which may be running text."""
    end = end_id(vocabulary, separator or LINE_END)
    for text in texts:
        begun = text[1:] if text[0] == end else text
        ended = begun if begun[-1] == end else np.append(begun, end)
        yield from itertools.chain.from_iterable(text_records(ended, vocabulary, separator or LINE_END))


def listed_texts(config: Config, progress: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The texts that weights have seen, as a checkpoint lists them: of the earlier runs, and at last of their own."""
    own = {"data": config.data.model_dump(mode="json"), "sha256": progress.get("corpus_sha256")}
    return [*(text for text in progress.get("earlier_texts", []) if text != own), own]


def earlier_texts(
    listed: Sequence[Any], vocabulary: Vocabulary, own: DataConfig, own_sha256: str
) -> tuple[list[Ids], list[str]]:
    """The training texts of earlier runs, as a checkpoint lists them, and a line for each that cannot be read.

    The vocabulary knows all of them. own, own_sha256: the text of the run itself. An earlier text that was this one is
    read there, if it has moved.
    """
    texts: list[Ids] = []
    unread: list[str] = []
    places = {name: getattr(own, name) for name in ("source", "valid_source", "test_source")}
    for earlier in listed:
        name = "a text"
        try:
            data = DataConfig.model_validate(earlier["data"])
            name = source_name(data.source)
            known = {"corpus_sha256": earlier["sha256"]}
            if earlier["sha256"] == own_sha256:
                data = data.model_copy(update=places)
            texts.append(load_unchanged_corpus(data, vocabulary, known).splits["train"])
        except (LookupError, TypeError, ValidationError):
            unread.append(f"{name} of an earlier run: its record in the checkpoint is damaged")
        except CharlmError as error:
            unread.append(f"{name} of an earlier run: {str(error).partition(';')[0]}")
    return texts, unread


def seen_places(text: EncodedText, seen: Sequence[Ids], separator: str) -> npt.NDArray[np.bool_]:
    """Which symbols of a text were trained on, [N]: those of long copied stretches, or of copied records.

    separator: of records, in whose ids the text then is; "" for running text.
    """
    if separator:
        known = set(seen_records(seen, text.vocabulary, separator))
        records = itertools.chain.from_iterable(text_records(text.ids, text.vocabulary, separator))
        return np.repeat(
            [record in known for record in records], np.diff(record_ends(text.ids, text.ids[0]), prepend=0)
        )
    places = np.zeros(len(text.ids), bool)
    for start, length in copied_stretches(copied_ngrams(text.ids, seen)):
        places[start : start + length] = length >= COPIED
    return places


def copied_ngrams(text: Ids, others: Iterable[Ids]) -> npt.NDArray[np.bool_]:
    """Which of the text's n-grams occur in one of the others, by where they begin; none for a text of fewer ids."""
    hashes, numbers = np.unique(_ngram_hashes(text), return_inverse=True)
    copied = np.zeros(len(hashes), bool)
    # With 64 slots for each hash, 1 to 2 % of other n-grams pass.
    bits = min(max(16, (64 * len(hashes)).bit_length()), 24)
    is_sought = np.zeros(2**bits, bool)
    is_sought[_slots(hashes, bits)] = True
    for other in others:
        for begin in range(0, len(other), _BLOCK):
            if copied.all():
                break
            of_block = _ngram_hashes(other[begin : begin + _BLOCK + NGRAM - 1])
            near = of_block[is_sought[_slots(of_block, bits)]]
            places = hashes.searchsorted(near).clip(max=len(hashes) - 1)
            copied[places[hashes[places] == near]] = True
    return copied[numbers]


def copied_stretches(copied: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(start, length) of the stretches of a text whose n-grams are all copied, from left to right.

    What two of them share belongs to the first.
    """
    edges = np.flatnonzero(np.diff(copied, prepend=False, append=False))
    stretches, end = [], 0
    for first, after_last in edges.reshape(-1, 2).tolist():
        begin, end = max(first, end), after_last + NGRAM - 1
        stretches.append((begin, end - begin))
    return stretches


def longest_copy(text: Ids, others: Iterable[Ids]) -> tuple[tuple[int, int], float | None]:
    """(start, length) of the longest copied stretch, and the share of the n-grams that are copied, None without any."""
    copied = copied_ngrams(text, others)
    longest = max(copied_stretches(copied), key=lambda stretch: stretch[1], default=(0, 0))
    return longest, float(copied.mean()) if len(copied) else None


def _ngram_hashes(ids: Ids) -> Hashes:
    count = max(len(ids) - NGRAM + 1, 0)
    return stretch_hashes(ids, slice(count), slice(NGRAM, NGRAM + count))


def _slots(hashes: Hashes, bits: int) -> npt.NDArray[np.int64]:
    """A number of so many bits for each hash: the high bits, after a multiplication that spreads them."""
    return (hashes * BASE >> np.uint64(64 - bits)).view(np.int64)
