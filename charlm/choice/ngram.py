"""How well simple models predict a text, and how long its lines are."""

import math
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from charlm.data.corpus import sample
from charlm.data.vocabulary import Ids, Vocabulary

_ORDER = 5
KNOWN_CHARS, _SCORED_CHARS = 500_000, 40_000
"""Characters that the n-gram model reads and scores at most, so that any text takes a fraction of a second."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that products modulo 2^64 rarely coincide

Keys = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class SimpleScores:
    """Nats per character of simple models on characters that they have not read."""

    ngram: float
    """The lowest of n-gram models, n from 1 to 5."""
    unigram: float
    """Frequencies alone."""
    deflate: float
    """Size of the ids, two bytes each, compressed by Deflate: low where text repeats within 16,000 characters."""


def simple_scores(known: Ids, unseen: Ids, vocabulary_size: int) -> SimpleScores:
    """The scores on a sample of `unseen`; n-gram models read a sample of `known`. Both: 100 characters or more."""
    return _scores(sample(known, KNOWN_CHARS), sample(unseen, _SCORED_CHARS), vocabulary_size)


def spread_simple_scores(ids: Ids, vocabulary_size: int) -> SimpleScores:
    """The same for unseen characters from all over a text of 500 or more: a fifth of its parts of 50 characters."""
    chars = sample(ids, KNOWN_CHARS).ravel()
    parts = chars[: len(chars) // 50 * 50].reshape(-1, 50)
    is_unseen = np.arange(len(parts)) % 5 == 0
    return _scores(parts[~is_unseen], parts[is_unseen], vocabulary_size)


def _scores(known: Ids, unseen: Ids, vocabulary_size: int) -> SimpleScores:
    by_order = heldout_nats(known, unseen, vocabulary_size)
    compressed = zlib.compress(unseen.astype(np.promote_types(unseen.dtype, np.uint16)).tobytes(), 9)
    return SimpleScores(min(by_order), by_order[0], 8 * math.log(2) * len(compressed) / unseen.size)


def mean_line_chars(ids: Ids, vocabulary: Vocabulary) -> float:
    """Mean length of a line, with its end, in the sample."""
    newline = -1 if vocabulary.unknown("\n") else vocabulary.encode("\n")[0]
    pieces = sample(ids, KNOWN_CHARS)
    return pieces.size / (np.count_nonzero(pieces == newline) + 1)


def heldout_nats(known: Ids, unseen: Ids, vocabulary_size: int) -> list[float]:
    """Nats per character of the pieces `unseen` for n-gram models of `known`, n from 1 to 5.

    They are smoothed as by Witten and Bell (1991):

    p(c | n characters) = (count + kinds · p(c | n − 1 characters)) / (total + kinds), where kinds is the number of
    different characters that followed the n characters.
    """
    p, nats = np.full(unseen[:, _ORDER:].size, 1 / vocabulary_size), []
    for order in range(_ORDER):
        contexts, grams = _keys(known, order)
        seen, first, counts = np.unique(grams, return_index=True, return_counts=True)
        before, totals = np.unique(contexts, return_counts=True)
        _, kinds = np.unique(contexts[first], return_counts=True)  # of each gram once; the contexts are `before`
        context, gram = _keys(unseen, order)
        count, total = _look_up(seen, counts, gram), _look_up(before, totals, context)
        different = _look_up(before, kinds, context)
        p = np.where(total > 0, (count + different * p) / np.maximum(total + different, 1), p)
        nats.append(float(0.0 - np.log(p).mean()))  # not -0.0
    return nats


def _keys(pieces: Ids, order: int) -> tuple[Keys, Keys]:
    """A number for the `order` characters before each character, and one that includes it."""
    wide, length = pieces.astype(np.uint64) + np.uint64(1), pieces.shape[1]
    context = np.zeros((len(pieces), length - _ORDER), np.uint64)
    for back in range(order, 0, -1):
        context = (context + wide[:, _ORDER - back : length - back]) * _FACTOR
    return context.ravel(), (context + wide[:, _ORDER:]).ravel()


def _look_up(keys: Keys, values: npt.NDArray[np.int64], queries: Keys) -> npt.NDArray[np.int64]:
    """The value of each wanted key, 0 where it is missing."""
    at = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[at] == queries, values[at], 0)
