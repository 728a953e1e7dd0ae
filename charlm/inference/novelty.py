"""Novelty: how much of a sample is copied word for word from a corpus.

A polynomial hash modulo 2⁶⁴ (Karp & Rabin 1987) finds windows of w ids. Running sums give the hashes of a whole block
of the corpus at once:

    S_i = Σ_{j<i} x_j b^j        hash of x_i … x_{i+w−1} = (S_{i+w} − S_i) b^{−i}

A window of the samples with the hash of a window of the corpus is then compared with it, id by id. Two different
windows of the samples that share a hash count as one; for n windows the probability of that is about n² / 2⁶⁵.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Ids = npt.NDArray[np.integer[Any]]
Numbers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

WINDOW = 20
"""Length in ids of the windows that `windows_share` counts."""
_BLOCK = 2**17
"""How many windows to hash at once: arrays of 1 MiB stay in a core's cache."""
_KEPT = 16
"""For how many window lengths a block keeps its hashes: this bounds memory when stretches keep growing."""
_FOLLOWED = 256
"""How many occurrences of a window in a block are followed: a row of spaces may occur everywhere."""
_BASE = 0x9E3779B97F4A7C15
_SCALE = 0xD1B54A32D192ED03
"""Odd factor of every hash, so that the hashes of short windows also differ in their high bits."""


@dataclass(frozen=True)
class Novelty:
    """How much of one sample occurs in the corpus."""

    start: int
    longest: int
    """The longest stretch is sample[start : start + longest]; of equally long ones, the first in the corpus."""
    windows_share: float | None
    """Share of the sample's windows of WINDOW ids, repeated ones included; None if the sample is shorter than one."""


def novelty(samples: Sequence[Ids], corpus: Ids) -> list[Novelty]:
    """Compare each sample, [n] unsigned, with the corpus, [N] unsigned, which may be memory-mapped.

    Reads the corpus once for all samples, block by block; memory grows with the samples only.
    """
    if not samples:
        return []
    windows, stretches = _Windows(samples, WINDOW), [_Stretch(sample) for sample in samples]
    start = 0
    while start < len(corpus) and not (windows.found.all() and all(stretch.wanted == 0 for stretch in stretches)):
        # A stretch may extend past the end of the block. Blocks are at least twice as long, so few ids are read twice.
        block = _Block(corpus, start, max(_BLOCK, 2 * max(stretch.wanted for stretch in stretches)))
        windows.mark(block)
        for stretch in stretches:
            stretch.look_in(block)
        start += block.size
    shares = windows.shares_found()
    return [Novelty(stretch.start, stretch.longest, share) for stretch, share in zip(stretches, shares, strict=True)]


def copied_stretches(text: Ids, corpus: Ids) -> list[tuple[int, int]]:
    """(start, length) of the stretches of WINDOW ids or more that occur in the corpus, from left to right.

    Each stretch goes as far as a place of the corpus does; the next one starts after it. Of a window that occurs more
    than `_FOLLOWED` times in a block of the corpus, only the first occurrences are followed.
    """
    if len(text) < WINDOW:
        return []
    windows = _Windows([text], WINDOW)
    longest = np.zeros(len(text), np.int64)
    for start in range(0, len(corpus), _BLOCK):
        _follow(windows, text, _Block(corpus, start, _BLOCK), longest)
    found, place = [], 0
    while place < len(text):
        if longest[place]:
            found.append((place, int(longest[place])))
        place += max(1, int(longest[place]))
    return found


def _follow(windows: "_Windows", text: Ids, block: "_Block", longest: Numbers) -> None:
    """Note in `longest` [n] how far the corpus goes with the text from each place on, if it does so in this block."""
    positions, numbers = windows.hits(block.hashes(WINDOW))
    order = np.argsort(numbers, kind="stable")
    positions, numbers = positions[order], numbers[order]
    for place, number in enumerate(windows.numbers):
        if place and longest[place - 1] > WINDOW:
            longest[place] = max(longest[place], longest[place - 1] - 1)
        first, end = np.searchsorted(numbers, [number, number + 1])
        at = block.start + positions[first : min(end, first + _FOLLOWED)]
        longest[place] = max(longest[place], _furthest(text[place:], block.corpus, at, int(longest[place])))


def _furthest(text: Ids, corpus: Ids, at: Numbers, known: int) -> int:
    """How far the text goes with the corpus from one of these places on; 0 if not beyond `known`."""
    wanted = max(known, WINDOW - 1) + 1
    best = 0
    for place in at.tolist():
        if wanted > min(len(text), len(corpus) - place):
            continue
        # The last id first: it tells nearly always.
        if corpus[place + wanted - 1] == text[wanted - 1] and (corpus[place : place + wanted] == text[:wanted]).all():
            best = _common_prefix(corpus[place:], text)
            wanted = best + 1
    return best


class _Block:
    """The windows of the corpus that start in corpus[start : start + size]."""

    def __init__(self, corpus: Ids, start: int, size: int) -> None:
        self.corpus = corpus
        self.start = start
        self.size = size
        self._sums = _running_sums(self.ids(2 * WINDOW))
        self._hashes: dict[int, Hashes] = {}

    def ids(self, length: int) -> Ids:
        """The ids that its windows of `length` ids cover."""
        return self.corpus[self.start : self.start + self.size + length - 1]

    def hashes(self, length: int) -> Hashes:
        """The hashes of its windows of `length` ids, in order; cached, because other texts ask for them too."""
        if length not in self._hashes:
            if len(self._hashes) == _KEPT:
                del self._hashes[next(iter(self._hashes))]  # the oldest
            ids = self.ids(length)
            if len(self._sums) <= len(ids):
                self._sums = _running_sums(self.ids(2 * length))
            self._hashes[length] = _hashes(self._sums, length, len(ids) - length + 1)
        return self._hashes[length]


class _Windows:
    """The distinct windows of `length` ids in some texts, numbered, and a lookup of them by hash."""

    def __init__(self, texts: Sequence[Ids], length: int) -> None:
        self.length = length
        self.ids = np.concatenate(texts)
        hashes = [_hashes(_running_sums(text), length, len(text) - length + 1) for text in texts]
        counts = np.array([len(each) for each in hashes])
        self.hashes, first, self.numbers = np.unique(np.concatenate(hashes), return_index=True, return_inverse=True)
        self._ends = counts.cumsum()
        text = self._ends.searchsorted(first, side="right")
        self.offset = first - (self._ends - counts)[text]
        """Number → offset of its first occurrence, in the first text that has it."""
        self._place = self.offset + np.cumsum([0, *map(len, texts)])[text]
        self.found = np.zeros(len(self.hashes), bool)
        # 64 slots per window: so 1 to 2 % of other windows pass.
        self._bits = min(max(16, (64 * len(self.hashes)).bit_length()), 24)
        self._note_found(np.empty(0, np.int64))

    def hits(self, hashes: Hashes) -> tuple[Numbers, Numbers]:
        """The positions in `hashes`, in order, where a window that is not `found` yet may stand, and its number."""
        near = np.flatnonzero(self._sought[self._slots(hashes)])
        numbers = self.hashes.searchsorted(hashes[near]).clip(max=len(self.hashes) - 1)
        same = (self.hashes[numbers] == hashes[near]) & ~self.found[numbers]
        return near[same], numbers[same]

    def mark(self, block: _Block) -> None:
        """Mark the windows that occur in the block as `found`."""
        if self.found.all():
            return
        positions, numbers = self.hits(block.hashes(self.length))
        if len(positions):
            there = sliding_window_view(block.ids(self.length), self.length)[positions]
            own = sliding_window_view(self.ids, self.length)[self._place[numbers]]
            self._note_found(numbers[(there == own).all(1)])

    def shares_found(self) -> list[float | None]:
        """The share of each text's windows that was found; None for a text without windows."""
        parts = np.split(self.found[self.numbers], self._ends[:-1])
        return [float(part.mean()) if len(part) else None for part in parts]

    def _note_found(self, numbers: Numbers) -> None:
        self.found[numbers] = True
        self._sought = np.zeros(2**self._bits, bool)
        self._sought[self._slots(self.hashes[~self.found])] = True

    def _slots(self, hashes: Hashes) -> Numbers:
        return (hashes >> np.uint64(64 - self._bits)).view(np.int64)


class _Stretch:
    """The longest stretch of a text so far; the search is always for one that is an id longer."""

    def __init__(self, text: Ids) -> None:
        self.text = text
        self.start = 0
        self.longest = 0
        self._windows: _Windows | None = None

    @property
    def wanted(self) -> int:
        """The length to look for; 0 if the whole text was found."""
        return self.longest + 1 if self.longest < len(self.text) else 0

    def look_in(self, block: _Block) -> None:
        """Replace the longest stretch if a longer one starts in the block."""
        while self.wanted and self._find(block):
            self._windows = None

    def _find(self, block: _Block) -> bool:
        """Look for a longer stretch and follow the first one as far as it goes; True if there is one."""
        if self._windows is None:
            self._windows = _Windows([self.text], self.wanted)
        for position, number in zip(*self._windows.hits(block.hashes(self.wanted)), strict=True):
            start = int(self._windows.offset[number])
            common = _common_prefix(block.corpus[block.start + position :], self.text[start:])
            if common >= self.wanted:
                self.start, self.longest = start, common
                return True
        return False


def _running_sums(ids: Ids) -> Hashes:
    """S in the module's equation, [n + 1]."""
    sums = np.zeros(len(ids) + 1, np.uint64)
    np.cumsum(np.multiply(ids, _powers(_BASE, 1, len(ids)), dtype=np.uint64), out=sums[1:])
    return sums


def _hashes(sums: Hashes, length: int, count: int) -> Hashes:
    """The hashes of the first `count` windows of `length` ids; empty if `count` is negative."""
    count = max(count, 0)
    return (sums[length : length + count] - sums[:count]) * _powers(pow(_BASE, -1, 2**64), _SCALE, count)


def _powers(base: int, scale: int, count: int) -> Hashes:
    """scale · base^i for i < count, modulo 2⁶⁴."""
    return _cached_powers(base, scale, (count - 1).bit_length())[:count]


@functools.lru_cache(maxsize=8)
def _cached_powers(base: int, scale: int, doublings: int) -> Hashes:
    powers = np.full(2**doublings, base, np.uint64)
    powers[0] = scale
    return powers.cumprod(dtype=np.uint64)


def _common_prefix(a: Ids, b: Ids) -> int:
    """How many leading ids are the same in both."""
    length = min(len(a), len(b))
    unequal = a[:length] != b[:length]
    return int(unequal.argmax()) if unequal.any() else length
