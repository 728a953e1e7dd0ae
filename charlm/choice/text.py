"""How well short contexts predict a text, and how long its lines are."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from charlm.data.corpus import Ids
from charlm.data.vocabulary import Vocabulary

_ORDER = 5
_SAMPLE = 160_000
"""Characters that the n-gram model reads, so that it takes a fraction of a second for any text."""
_PIECES = 8
"""Pieces of the sample, from all over the text."""

Keys = npt.NDArray[np.uint64]


def ngram_nats(ids: Ids, vocabulary_size: int) -> float:
    """Nats per character of a 5-gram model with backoff on pieces of the text that it has not read.

    It reads the beginning of each piece of the sample, and scores the last fifth. ids: 500 or more.
    """
    pieces = sample(ids)
    cut = len(pieces[0]) * 4 // 5
    return heldout_nats([piece[:cut] for piece in pieces], [piece[cut:] for piece in pieces], vocabulary_size)


def mean_line_chars(ids: Ids, vocabulary: Vocabulary) -> float:
    """Mean length of a line, with its end, in the sample."""
    newline = -1 if vocabulary.unknown("\n") else vocabulary.encode("\n")[0]
    pieces = sample(ids)
    return sum(map(len, pieces)) / (sum(int(np.count_nonzero(piece == newline)) for piece in pieces) + 1)


def sample(ids: Ids) -> list[Ids]:
    """Pieces of equal length from all over the text; of a small one, all of it."""
    length = min(len(ids), _SAMPLE) // _PIECES
    return [ids[start : start + length] for start in np.linspace(0, len(ids) - length, _PIECES).astype(int)]


def heldout_nats(known: Sequence[Ids], unseen: Sequence[Ids], vocabulary_size: int) -> float:
    """Nats per character of `unseen` for a 5-gram model of `known`, smoothed as by Witten and Bell (1991).

    p(c | n characters) = (count + kinds · p(c | n − 1 characters)) / (total + kinds), where kinds is the number of
    different characters that followed the n characters.
    """
    p = np.full(sum(len(piece) for piece in unseen) - _ORDER * len(unseen), 1 / vocabulary_size)
    for order in range(_ORDER):
        contexts, grams = (np.concatenate(keys) for keys in zip(*_keys(known, order), strict=True))
        seen, first, count = np.unique(grams, return_index=True, return_counts=True)
        before, total = np.unique(contexts, return_counts=True)
        # Each gram once, with its context: how many different characters follow the context. The contexts are `before`.
        _, kinds = np.unique(contexts[first], return_counts=True)
        context, gram = (np.concatenate(keys) for keys in zip(*_keys(unseen, order), strict=True))
        counts, totals, different = (
            _find(seen, count, gram),
            _find(before, total, context),
            _find(before, kinds, context),
        )
        p = np.where(totals > 0, (counts + different * p) / np.maximum(totals + different, 1), p)
    return float(0.0 - np.log(p).mean())  # not -0.0


def _keys(pieces: Sequence[Ids], order: int) -> Iterator[tuple[Keys, Keys]]:
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
