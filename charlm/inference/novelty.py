"""Novelty: how much of a text is copied word for word from a corpus.

Windows of the text are found in the corpus by their hashes, one block of the corpus after another. Memory grows with
the text only. The corpus may be memory-mapped.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from charlm.data.hashes import BASE, Hashes, window_hashes
from charlm.data.vocabulary import Ids

Places = npt.NDArray[np.int64]

WINDOW = 20
"""Ids of the windows that `copied_share` counts, and of the shortest of `copied_stretches`."""
_BLOCK = 2**17
"""How many windows to hash at once: arrays of 1 MiB stay in a core's cache."""
_FOLLOWED = 256
"""How many occurrences of a window in a block are followed: a row of spaces may occur everywhere."""


@dataclass(frozen=True)
class Verbatim:
    """How much of a text occurs verbatim in the training text."""

    longest: int
    """Length of the longest such stretch, in characters (bytes for a byte model)."""
    stretch: str
    windows_share: float | None
    """Share of the text's windows of 20 characters; None if the text is shorter than one."""


def copied_share(text: Ids, corpus: Ids) -> float | None:
    """The share of the text's windows that occur in the corpus, repeated ones included; None without windows."""
    if len(text) < WINDOW:
        return None
    windows = _Windows(text, WINDOW)
    copied = np.zeros(len(windows.hashes), bool)
    for begin in range(0, len(corpus), _BLOCK):
        _, numbers = windows.find(corpus[begin : begin + _BLOCK + WINDOW - 1])
        copied[numbers] = True
        if copied.all():
            break
    return float(copied[windows.numbers].mean())


def longest_copy(text: Ids, corpus: Ids) -> tuple[int, int]:
    """(start, length) of the longest stretch of the text in the corpus; of equally long ones, the corpus's first."""
    start = length = begin = 0
    windows = _Windows(text, 1)
    while begin < len(corpus) and length < len(text):
        # A copy may extend past the end of the block. Blocks are at least twice as long, so few ids are read twice.
        size = max(_BLOCK, 2 * length)
        for position, number in zip(*windows.find(corpus[begin : begin + size + length]), strict=True):
            start_in_text = int(windows.positions[number])
            common = _common_prefix(corpus[begin + position :], text[start_in_text:])
            if common > length:
                start, length = start_in_text, common
                windows = _Windows(text, length + 1)
                break
        else:
            begin += size
    return start, length


def copied_stretches(text: Ids, corpus: Ids) -> list[tuple[int, int]]:
    """(start, length) of the stretches of WINDOW ids or more that occur in the corpus, from left to right.

    Each stretch goes as far as a place of the corpus does; the next one starts after it. Of a window that occurs more
    than `_FOLLOWED` times in a block of the corpus, only the first occurrences are followed.
    """
    windows = _Windows(text, WINDOW)
    numbers, positions = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for begin in range(0, len(corpus), _BLOCK):
        of_block, at = windows.find(corpus[begin : begin + _BLOCK + WINDOW - 1])[::-1]
        order = np.argsort(of_block, kind="stable")
        sorted_numbers = of_block[order]
        first = np.arange(len(order)) - np.searchsorted(sorted_numbers, sorted_numbers) < _FOLLOWED
        numbers.append(sorted_numbers[first])
        positions.append(begin + at[order][first])
    order = np.argsort(np.concatenate(numbers), kind="stable")
    all_numbers, all_positions = np.concatenate(numbers)[order], np.concatenate(positions)[order]
    stretches, start_in_text = [], 0
    while start_in_text < len(windows.numbers):
        number = windows.numbers[start_in_text]
        begin, end = np.searchsorted(all_numbers, [number, number + 1])
        length = _longest_after(text[start_in_text:], corpus, all_positions[begin:end])
        if length:
            stretches.append((start_in_text, length))
        start_in_text += max(1, length)
    return stretches


def _longest_after(text: Ids, corpus: Ids, at: Places) -> int:
    """Longest match of the text with the corpus at any of these positions; 0 if there are none.

    The first window is the same at each of them.
    """
    length = WINDOW if len(at) else 0
    while 0 < length < len(text):
        at = at[at + length < len(corpus)]
        at = at[corpus[at + length] == text[length]]
        if not len(at):
            break
        length += 1
    return length


class _Windows:
    """The distinct windows of `length` ids in a text, numbered, and a lookup of them by hash."""

    def __init__(self, text: Ids, length: int) -> None:
        self._length = length
        self.hashes, self.positions, self.numbers = np.unique(
            window_hashes(text, length), return_index=True, return_inverse=True
        )
        """For each number its hash and its first place in the text; the number of each window of the text."""
        # 64 slots per window: so 1 to 2 % of other windows pass.
        self._bits = min(max(16, (64 * len(self.hashes)).bit_length()), 24)
        self._is_sought = np.zeros(2**self._bits, bool)
        self._is_sought[self._slots(self.hashes)] = True

    def find(self, ids: Ids) -> tuple[Places, Places]:
        """Where these windows occur in `ids`, in order, and their numbers."""
        hashes = window_hashes(ids, self._length)
        near = np.flatnonzero(self._is_sought[self._slots(hashes)])
        numbers = self.hashes.searchsorted(hashes[near]).clip(max=max(len(self.hashes) - 1, 0))
        same = self.hashes[numbers] == hashes[near]
        return near[same], numbers[same]

    def _slots(self, hashes: Hashes) -> Places:
        # The high bits: those of short windows differ only after a multiplication.
        return (hashes * BASE >> np.uint64(64 - self._bits)).view(np.int64)


def _common_prefix(a: Ids, b: Ids) -> int:
    """How many leading ids are the same in both."""
    length = min(len(a), len(b))
    unequal = a[:length] != b[:length]
    return int(unequal.argmax()) if unequal.any() else length
