"""Novelty: which n-grams of a text occur in other texts, found by their hashes, one block of these after another.

Memory grows with the text only. The other texts may be memory-mapped.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from charlm.data.hashes import BASE, Hashes, stretch_hashes
from charlm.data.vocabulary import Ids

NGRAM = 20
"""n: the ids of an n-gram, which charlm calls a window of 20 characters where people read of it."""
_BLOCK = 2**17
"""How many n-grams to hash at once: arrays of 1 MiB stay in a core's cache."""


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
