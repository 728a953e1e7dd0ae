"""How well short contexts predict a text, and how long its lines are."""

import numpy as np
import numpy.typing as npt

from charlm.data.corpus import sample
from charlm.data.vocabulary import Ids, Vocabulary

_ORDER = 5
KNOWN_CHARS, _SCORED_CHARS = 500_000, 40_000
"""Characters that the n-gram model reads and scores at most, so that any text takes a fraction of a second."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that products modulo 2^64 rarely coincide

Keys = npt.NDArray[np.uint64]


def ngram_nats(known: Ids, unseen: Ids, vocabulary_size: int) -> float:
    """Nats per character of a 5-gram model with backoff that reads a sample of `known`, on a sample of `unseen`.

    Both: 100 characters or more.
    """
    return heldout_nats(sample(known, KNOWN_CHARS), sample(unseen, _SCORED_CHARS), vocabulary_size)


def spread_ngram_nats(ids: Ids, vocabulary_size: int) -> float:
    """The same for unseen characters from all over a text of 500 or more: a fifth of its parts of 50 characters."""
    chars = sample(ids, KNOWN_CHARS).ravel()
    parts = chars[: len(chars) // 50 * 50].reshape(-1, 50)
    is_unseen = np.arange(len(parts)) % 5 == 0
    return heldout_nats(parts[~is_unseen], parts[is_unseen], vocabulary_size)


def mean_line_chars(ids: Ids, vocabulary: Vocabulary) -> float:
    """Mean length of a line, with its end, in the sample."""
    newline = -1 if vocabulary.unknown("\n") else vocabulary.encode("\n")[0]
    pieces = sample(ids, KNOWN_CHARS)
    return pieces.size / (np.count_nonzero(pieces == newline) + 1)


def heldout_nats(known: Ids, unseen: Ids, vocabulary_size: int) -> float:
    """Nats per character of the pieces `unseen` for a 5-gram model of `known`, smoothed as by Witten and Bell (1991).

    p(c | n characters) = (count + kinds · p(c | n − 1 characters)) / (total + kinds), where kinds is the number of
    different characters that followed the n characters.
    """
    p = np.full(unseen[:, _ORDER:].size, 1 / vocabulary_size)
    for order in range(_ORDER):
        contexts, grams = _keys(known, order)
        seen, first, counts = np.unique(grams, return_index=True, return_counts=True)
        before, totals = np.unique(contexts, return_counts=True)
        _, kinds = np.unique(contexts[first], return_counts=True)  # of each gram once; the contexts are `before`
        context, gram = _keys(unseen, order)
        count, total = _look_up(seen, counts, gram), _look_up(before, totals, context)
        different = _look_up(before, kinds, context)
        p = np.where(total > 0, (count + different * p) / np.maximum(total + different, 1), p)
    return float(0.0 - np.log(p).mean())  # not -0.0


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
