"""Novelty: which windows of a text occur in a corpus, found by their hashes, one block of the corpus after another.

Memory grows with the text only. The corpus may be memory-mapped.
"""

import numpy as np
import numpy.typing as npt

from charlm.data.hashes import BASE, Hashes, stretch_hashes
from charlm.data.vocabulary import Ids

WINDOW = 20
"""Ids of a window."""
_BLOCK = 2**17
"""How many windows to hash at once: arrays of 1 MiB stay in a core's cache."""


def copied_windows(text: Ids, corpus: Ids) -> npt.NDArray[np.bool_]:
    """Which of the text's windows occur in the corpus; none for a text that is shorter than a window."""
    hashes, numbers = np.unique(_window_hashes(text), return_inverse=True)
    copied = np.zeros(len(hashes), bool)
    # With 64 slots for each hash, 1 to 2 % of other windows pass.
    bits = min(max(16, (64 * len(hashes)).bit_length()), 24)
    is_sought = np.zeros(2**bits, bool)
    is_sought[_slots(hashes, bits)] = True
    for begin in range(0, len(corpus), _BLOCK):
        if copied.all():
            break
        of_block = _window_hashes(corpus[begin : begin + _BLOCK + WINDOW - 1])
        near = of_block[is_sought[_slots(of_block, bits)]]
        places = hashes.searchsorted(near).clip(max=len(hashes) - 1)
        copied[places[hashes[places] == near]] = True
    return copied[numbers]


def copied_stretches(copied: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(start, length) of the stretches of a text whose windows are all copied, from left to right.

    What two of them share belongs to the first.
    """
    edges = np.flatnonzero(np.diff(copied, prepend=False, append=False))
    stretches, end = [], 0
    for first_window, after_last in edges.reshape(-1, 2).tolist():
        begin, end = max(first_window, end), after_last + WINDOW - 1
        stretches.append((begin, end - begin))
    return stretches


def longest_copy(text: Ids, corpus: Ids) -> tuple[tuple[int, int], float | None]:
    """(start, length) of the longest copied stretch, and the share of the windows that are copied, None without any."""
    copied = copied_windows(text, corpus)
    longest = max(copied_stretches(copied), key=lambda stretch: stretch[1], default=(0, 0))
    return longest, float(copied.mean()) if len(copied) else None


def _window_hashes(ids: Ids) -> Hashes:
    count = max(len(ids) - WINDOW + 1, 0)
    return stretch_hashes(ids, slice(count), slice(WINDOW, WINDOW + count))


def _slots(hashes: Hashes, bits: int) -> npt.NDArray[np.int64]:
    """A number of so many bits for each hash: the high bits, after a multiplication that spreads them."""
    return (hashes * BASE >> np.uint64(64 - bits)).view(np.int64)
