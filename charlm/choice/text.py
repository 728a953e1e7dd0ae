"""What a text is like: its size, and how well short contexts predict it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from charlm.data.corpus import Corpus, Ids

_ORDER = 5
_SAMPLE = 160_000
"""Characters that the n-gram model reads, so that it takes a fraction of a second for any text."""
_PARTS = 8
"""Pieces of the sample, from all over the text."""

Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class TextFacts:
    """What the choice of settings knows about a text."""

    chars: int
    """Characters (or bytes) of the text."""
    vocabulary: int
    """Distinct characters."""
    ngram_nats: float
    """Nats per character of a 5-gram model with backoff on pieces of the text that it has not read."""
    line_chars: float
    """Mean length of a line, with its end."""


def text_facts(corpus: Corpus) -> TextFacts:
    """Look at the train split of a corpus, 500 characters or more: at all of a small one, at pieces of a large one."""
    ids = corpus.splits["train"]
    known, unseen = sample(ids)
    size = len(corpus.vocabulary)
    newline = -1 if corpus.vocabulary.unknown("\n") else corpus.vocabulary.encode("\n")[0]
    pieces = [*known, *unseen]
    lines = sum(int(np.count_nonzero(piece == newline)) for piece in pieces)
    return TextFacts(
        chars=len(ids),
        vocabulary=size,
        ngram_nats=ngram_nats(known, unseen, size),
        line_chars=sum(map(len, pieces)) / (lines + 1),
    )


def sample(ids: Ids) -> tuple[list[Ids], list[Ids]]:
    """Pieces to learn from, and behind each a piece, a quarter as long, to score."""
    length = min(len(ids), _SAMPLE) // _PARTS
    starts = np.linspace(0, len(ids) - length, _PARTS).astype(int)
    cut = length * 4 // 5
    return [ids[start : start + cut] for start in starts], [ids[start + cut : start + length] for start in starts]


def ngram_nats(known: list[Ids], unseen: list[Ids], vocabulary_size: int) -> float:
    """Nats per character of `unseen` for a 5-gram model of `known`, smoothed as by Witten and Bell (1991).

    p(c | n characters) = (count + kinds · p(c | n − 1 characters)) / (total + kinds), where kinds is the number of
    different characters that followed the n characters.
    """
    p = np.full(sum(len(piece) for piece in unseen) - _ORDER * len(unseen), 1 / vocabulary_size)
    for order in range(_ORDER):
        contexts, grams = (np.concatenate(keys) for keys in zip(*_keys(known, order), strict=True))
        seen, count = np.unique(grams, return_counts=True)
        before, total = np.unique(contexts, return_counts=True)
        # Each gram once, with its context: how many different characters follow the context.
        _, first = np.unique(grams, return_index=True)
        after, kinds = np.unique(contexts[first], return_counts=True)
        context, gram = (np.concatenate(keys) for keys in zip(*_keys(unseen, order), strict=True))
        counts, totals, different = (
            _find(seen, count, gram),
            _find(before, total, context),
            _find(after, kinds, context),
        )
        mixed = (counts + different * p) / np.maximum(totals + different, 1)
        p = np.where(totals > 0, mixed, p)
    return float(0.0 - np.log(p).mean())  # not -0.0


def _keys(pieces: list[Ids], order: int) -> Iterator[tuple[Keys, Keys]]:
    """Of each piece, a number for the `order` characters before each character, and one that includes it."""
    for piece in pieces:
        wide = piece.astype(np.uint64)
        context = np.zeros(len(wide) - _ORDER, np.uint64)
        for back in range(order, 0, -1):
            context = (context + wide[_ORDER - back : len(wide) - back] + np.uint64(1)) * _FACTOR
        yield context, context + wide[_ORDER:] + np.uint64(1)


_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that products modulo 2^64 rarely coincide


def _find(keys: Keys, values: npt.NDArray[np.int64], wanted: Keys) -> npt.NDArray[np.int64]:
    """The value of each wanted key, 0 where it is missing."""
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)
