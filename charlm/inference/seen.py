"""What weights were trained on, in their run and those that it started from, and what of a text occurs there.

The n-grams of a text are found by their hashes, in one block of the other texts after another. Memory grows with the
text only; the others may be memory-mapped.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import ValidationError

from charlm.config.schema import Config, DataConfig
from charlm.data.corpus import load_unchanged_corpus
from charlm.data.encoded import EncodedText
from charlm.data.polynomial_hashes import BASE, Hashes, stretch_hashes
from charlm.data.records import end_id, end_of_record, record_ends, text_records
from charlm.data.vocabulary import Ids, Vocabulary
from charlm.errors import CharlmError
from charlm.system.arrays import Bools, Ints
from charlm.system.formatting import source_name

SEARCHED, NOTED = 5_000_000, 0.005
"""Symbols of a text that are looked for at most, and the share of it that is worth a note."""
COPIED = 200
"""Symbols of a copied stretch that tell that a text was read: phrases that occur twice are shorter."""
NGRAM = 20
"""n: the ids of an n-gram, which charlm calls a window of 20 characters where people read of it."""
_BLOCK = 2**17
"""How many ids to hash at once: arrays of 1 MiB stay in a core's cache."""


def seen_records(texts: Iterable[Ids], vocabulary: Vocabulary, separator: str) -> Iterator[str]:
    """The records of texts, each of which may be running text."""
    end = end_id(vocabulary, separator)
    for text in texts:
        begun = text[1:] if text[0] == end else text
        ended = begun if begun[-1] == end else np.append(begun, begun.dtype.type(end))
        yield from itertools.chain.from_iterable(text_records(ended, vocabulary, separator))


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


def seen_places(text: EncodedText, seen: Sequence[Ids], separator: str) -> Bools:
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
    [(stretches, _)] = copied_stretches([text.ids], seen, space_ids(text.vocabulary))
    for start, length in stretches:
        places[start : start + length] = length >= COPIED
    return places


def space_ids(vocabulary: Vocabulary, separator: str = "") -> list[int]:
    """The ids of white space, which counts as equal; the end of a record is none."""
    characters = vocabulary.characters or bytes(range(128)).decode()
    end = end_of_record(separator) if separator else ""
    return [id for id, character in enumerate(characters) if character.isspace() and character != end]


def copied_stretches(
    texts: Iterable[Ids], others: Iterable[Ids], spaces: Sequence[int]
) -> list[tuple[list[tuple[int, int]], float | None]]:
    """For each text, (start, length) of the stretches whose n-grams all occur in one of the others, in order.

    And the share of its n-grams that occur, None without any. Ids of `spaces` that follow one another count as one
    space. What two stretches share belongs to the first. Reads the others once.
    """
    single = [_with_single_spaces(text, spaces) for text in texts]
    blocks = itertools.chain.from_iterable(_blocks(other, spaces) for other in others)
    all_copied = _copied_ngrams([ids for ids, _ in single], blocks)
    found = []
    for (_, is_kept), copied in zip(single, all_copied, strict=True):
        places = np.flatnonzero(is_kept)
        edges = np.flatnonzero(np.diff(copied, prepend=False, append=False))
        stretches, end = [], 0
        for first, after_last in edges.reshape(-1, 2).tolist():
            begin, end = max(first, end), after_last + NGRAM - 1
            start = int(places[begin])
            stretches.append((start, int(places[end - 1]) + 1 - start))
        found.append((stretches, float(copied.mean()) if len(copied) else None))
    return found


def _with_single_spaces(ids: Ids, spaces: Sequence[int], *, follows_space: bool = False) -> tuple[Ids, Bools]:
    """Ids with the first of `spaces` in place of each run of them, and which ids these are."""
    is_space = np.zeros(len(ids), bool)
    for space in spaces:
        is_space |= ids == space
    is_kept = ~is_space
    is_kept[1:] |= ~is_space[:-1]
    is_kept[:1] |= not follows_space
    single = np.where(is_space, ids.dtype.type(spaces[0]), ids) if spaces else ids
    return single[is_kept], is_kept


def _blocks(ids: Ids, spaces: Sequence[int]) -> Iterator[Ids]:
    """A text with single spaces in blocks, each of which repeats the last n − 1 ids of the one before."""
    block, follows_space = ids[:0], False
    for begin in range(0, len(ids), _BLOCK):
        more = ids[begin : begin + _BLOCK]
        single, _ = _with_single_spaces(more, spaces, follows_space=follows_space)
        follows_space = int(more[-1]) in spaces
        block = np.concatenate([block[-(NGRAM - 1) :], single])
        yield block


def _copied_ngrams(texts: Iterable[Ids], blocks: Iterable[Ids]) -> list[Bools]:
    """Which of each text's n-grams occur in one of the blocks, by where they begin; none for a text of fewer ids."""
    of_texts = [np.zeros(0, np.uint64), *map(_ngram_hashes, texts)]
    hashes, numbers = np.unique(np.concatenate(of_texts), return_inverse=True)
    copied = np.zeros(len(hashes), bool)
    # With 64 slots for each hash, 1 to 2% of other n-grams pass.
    bits = min(max(16, (64 * len(hashes)).bit_length()), 24)
    is_sought = np.zeros(2**bits, bool)
    is_sought[_slots(hashes, bits)] = True
    for block in blocks:
        if copied.all():
            break
        of_block = _ngram_hashes(block)
        near = of_block[is_sought[_slots(of_block, bits)]]
        places = hashes.searchsorted(near).clip(max=len(hashes) - 1)
        copied[places[hashes[places] == near]] = True
    return np.split(copied[numbers], np.cumsum([len(own) for own in of_texts])[:-1])[1:]


def _ngram_hashes(ids: Ids) -> Hashes:
    count = max(len(ids) - NGRAM + 1, 0)
    return stretch_hashes(ids, slice(count), slice(NGRAM, NGRAM + count))


def _slots(hashes: Hashes, bits: int) -> Ints:
    """A number of so many bits for each hash: the high bits, after a multiplication that spreads them."""
    return (hashes * BASE >> np.uint64(64 - bits)).view(np.int64)
