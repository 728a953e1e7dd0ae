"""Training windows of texts whose lines are records: whole lines in random order, side by side in B streams."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from charlm.data.line_split import scattered
from charlm.data.streams import check_length
from charlm.system.device import to_device
from charlm.system.world import WHOLE, Part

_ROUNDS = 8
_BLOCK = 1 << 16
"""Lines whose lengths are added up at once."""
_AHEAD = 64
"""Lines that a stream looks up at once."""

Indices = npt.NDArray[np.uint64]


class Shuffle:
    """A random order of n things in constant memory: a permutation of 0 … n − 1 that depends on a seed.

    A Feistel network (Luby & Rackoff 1988) permutes the numbers of 2w bits; a result of n or more is permuted again
    until it is smaller (Black & Rogaway 2002).
    """

    def __init__(self, n: int, seed: tuple[int, ...]) -> None:
        assert n >= 1, n
        self.n = n
        self._half = np.uint64(-(-max((n - 1).bit_length(), 2) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64)

    def __call__(self, places: npt.ArrayLike) -> Indices:
        """What stands at these places of the order."""
        found = self._permuted(np.atleast_1d(np.asarray(places, np.uint64)))
        while (outside := found >= self.n).any():
            found[outside] = self._permuted(found[outside])
        return found

    def _permuted(self, x: Indices) -> Indices:
        left, right = x >> self._half, x & self._mask
        for key in self._keys:
            left, right = right, left ^ (scattered(right ^ key) & self._mask)
        return (left << self._half) | right


class LineStreams:
    """B streams of whole lines, each line once in an epoch, in an order of its own for every epoch.

    Has the interface of `Streams`. A stream is the newline that starts its first line, and then line after line. It
    begins with the first line of the epoch's order that starts at or behind b · S characters of it, and has
    S = N // B characters, so that the last line may be cut. Lines that start in the last characters of the order follow
    those at its beginning.

    ids         [1 + N] unsigned integers: a newline, then the lines, each with its newline; may be memory-mapped
    starts      [lines + 1]: where in `ids` each line begins; the last element is 1 + N
    seed        what the order of lines depends on
    others      see `Streams`
    """

    def __init__(
        self,
        ids: npt.NDArray[np.integer[Any]],
        starts: npt.NDArray[np.integer[Any]],
        batch_size: int,
        bptt: int,
        name: str = "train split",
        part: Part = WHOLE,
        seed: int = 1,
    ) -> None:
        check_length(len(ids), batch_size, bptt, name)
        self.batch_size = batch_size
        self.bptt = bptt
        self.length = (len(ids) - 1) // batch_size
        """S, characters per stream."""
        self._ids, self._starts, self._seed = ids, starts, seed
        self._own = np.array_split(np.arange(batch_size), part.count)[part.index]
        self._epoch = -1
        self._position = 0
        self._streams: list[_Stream] = []

    @property
    def windows_per_epoch(self) -> int:
        """Whole windows of T steps per stream."""
        return self.length // self.bptt

    def run_start(self, share: float) -> int:
        """Where a run starts, see `Streams.run_start`."""
        return int(share * self.windows_per_epoch) * self.bptt

    def epoch_start(self, epoch: int) -> int:
        """Where an epoch starts in each stream: at its first line. The characters left out differ in every epoch."""
        return 0

    def read(
        self, position: int, steps: int, device: torch.device | str | None = None, epoch: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets for `steps` characters from `position`, see `Streams.read`.

        Reading on from where the last call ended is fast; anything else reads over the epoch's lengths of lines.
        """
        assert position >= 0, position
        assert 1 <= steps <= self.length - position, (position, steps, self.length)
        if epoch != self._epoch or position != self._position:
            self._seek(epoch, position)
        window_BT = np.empty((len(self._streams), steps + 1), np.int64)
        for row_T, stream in zip(window_BT, self._streams, strict=True):
            stream.read(row_T)
        self._position = position + steps
        ids_TB = to_device(np.ascontiguousarray(window_BT.T), torch.device(device or "cpu"))
        return ids_TB[:-1], ids_TB[1:]

    def _seek(self, epoch: int, position: int) -> None:
        order = Shuffle(len(self._starts) - 1, (self._seed, epoch))
        if epoch != self._epoch:
            self._firsts = self._first_places(order)
        self._streams = [_Stream(self._ids, self._starts, order, int(place)) for place in self._firsts[self._own]]
        for stream in self._streams:
            stream.skip(position)
        self._epoch, self._position = epoch, position

    def _first_places(self, order: Shuffle) -> npt.NDArray[np.int64]:
        """The place in the order of each stream's first line."""
        wanted, found = self.length * np.arange(self.batch_size), np.zeros(self.batch_size, np.int64)
        before = 0
        for begin in range(0, order.n, _BLOCK):
            lines = order(np.arange(begin, min(begin + _BLOCK, order.n), dtype=np.uint64)).astype(np.int64)
            ends = before + np.cumsum(self._starts[lines + 1] - self._starts[lines])
            inside = (wanted > before) & (wanted <= ends[-1])
            found[inside] = begin + np.searchsorted(ends, wanted[inside]) + 1
            before = int(ends[-1])
        return found % order.n


class _Stream:
    """One stream: line after line from a place in the order, after the last of which comes the first."""

    def __init__(self, ids: npt.NDArray[Any], starts: npt.NDArray[Any], order: Shuffle, place: int) -> None:
        self._ids, self._starts, self._order, self._place = ids, starts, order, place
        self._last = int(ids[0])
        self._ahead: list[tuple[int, int]] = []
        """Begin and end in `ids` of what comes next, in reverse."""

    def read(self, row: npt.NDArray[np.int64]) -> None:
        """Fill `row` with the last character that was read, and those that follow."""
        row[0] = self._last
        filled = 1
        while filled < len(row):
            begin, end = self._next()
            length = min(end - begin, len(row) - filled)
            row[filled : filled + length] = self._ids[begin : begin + length]
            filled += length
            if begin + length < end:
                self._ahead.append((begin + length, end))
        self._last = int(row[-1])

    def skip(self, count: int) -> None:
        """Go on by so many characters."""
        while count > 0:
            begin, end = self._next()
            length = min(end - begin, count)
            count -= length
            self._last = int(self._ids[begin + length - 1])
            if begin + length < end:
                self._ahead.append((begin + length, end))

    def _next(self) -> tuple[int, int]:
        if not self._ahead:
            n = self._order.n
            lines = self._order((self._place + np.arange(min(_AHEAD, n))) % n).astype(np.int64)
            self._place = (self._place + len(lines)) % n
            pairs = zip(self._starts[lines].tolist(), self._starts[lines + 1].tolist(), strict=True)
            self._ahead = list(pairs)[::-1]
        return self._ahead.pop()
