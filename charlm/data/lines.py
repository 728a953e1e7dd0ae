"""Training windows of texts whose lines are records: whole lines in random order, side by side in B streams."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from charlm.data.hashes import scattered
from charlm.data.streams import check_length
from charlm.system.device import to_device
from charlm.system.process_group import WHOLE_BATCH, Shard

_ROUNDS = 8
_BLOCK = 1 << 8
"""Lines that stand together in the text, and that are drawn together."""
_GROUP = 1 << 10
"""Blocks whose lines are shuffled together."""
_AHEAD = 256
"""Lines that a stream looks up at once."""
_CHARS = 1 << 13
"""Characters that a stream copies at once."""

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


class LineOrder:
    """A random order of the lines of a text that takes little time and memory even for a hundred million lines.

    Blocks of lines that stand together in the text are drawn in random order, and put into groups. The lines of each
    group are shuffled. The order of a text with up to 262,144 lines is thus any; in larger texts reading stays near few
    places of the text at a time, so that it may be larger than memory.

    starts      see `LineStreams`
    seed        what the order depends on
    """

    def __init__(self, starts: npt.NDArray[np.integer[Any]], seed: tuple[int, ...]) -> None:
        self._starts, self._seed = starts, seed
        self.lines = len(starts) - 1
        blocks = Shuffle(-(-self.lines // _BLOCK), seed)
        first = blocks(np.arange(blocks.n)).astype(np.int64) * _BLOCK
        last = np.minimum(first + _BLOCK, self.lines)
        group_begins = np.arange(0, blocks.n, _GROUP)
        self._first_lines = first
        self._block_sizes = last - first
        self._group_ends = np.cumsum(np.add.reduceat(self._block_sizes, group_begins))
        chars = starts[last].astype(np.int64) - starts[first].astype(np.int64)
        self._group_char_ends = np.cumsum(np.add.reduceat(chars, group_begins))
        self._kept = -1, chars

    @property
    def chars(self) -> int:
        """Characters of all lines."""
        return int(self._group_char_ends[-1])

    def ahead(self, place: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the lines from this place of the order on begin and end in the text: some, at least one."""
        group, first = self._group_of(place)
        last = min(place + _AHEAD, int(self._group_ends[group]))
        return self._bounds(group, np.arange(place - first, last - first))

    def find(self, char: int) -> tuple[int, int, int]:
        """The line that has this character of the order: its place, its length, and the character's offset in it."""
        group = int(np.searchsorted(self._group_char_ends, char, side="right"))
        before = int(self._group_char_ends[group - 1]) if group else 0
        ends = before + self._char_ends(group)
        inside = int(np.searchsorted(ends, char, side="right"))
        begin = int(ends[inside - 1]) if inside else before
        place = inside + (int(self._group_ends[group - 1]) if group else 0)
        return place, int(ends[inside]) - begin, char - begin

    def _group_of(self, place: int) -> tuple[int, int]:
        """The group of a place, and the place of its first line."""
        group = int(np.searchsorted(self._group_ends, place, side="right"))
        return group, int(self._group_ends[group - 1]) if group else 0

    def _char_ends(self, group: int) -> npt.NDArray[np.int64]:
        """Where each line of a group ends, in characters from the group's beginning; keeps those of one group."""
        if group != self._kept[0]:
            size = int(self._group_ends[group]) - (int(self._group_ends[group - 1]) if group else 0)
            begins, ends = self._bounds(group, np.arange(size))
            self._kept = group, np.cumsum(ends - begins)
        return self._kept[1]

    def _bounds(self, group: int, inside: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Begin and end in the text of the lines at these places of a group's order."""
        blocks = slice(group * _GROUP, (group + 1) * _GROUP)
        block_ends = np.cumsum(self._block_sizes[blocks])
        drawn = Shuffle(int(block_ends[-1]), (*self._seed, group + 1))(inside).astype(np.int64)
        block = np.searchsorted(block_ends, drawn, side="right")
        lines = drawn - (block_ends - self._block_sizes[blocks])[block] + self._first_lines[blocks][block]
        return self._starts[lines].astype(np.int64), self._starts[lines + 1].astype(np.int64)


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
        shard: Shard = WHOLE_BATCH,
        seed: int = 1,
    ) -> None:
        check_length(len(ids), batch_size, bptt, name)
        self.batch_size = batch_size
        self.bptt = bptt
        self.length = (len(ids) - 1) // batch_size
        """S, characters per stream."""
        # Views of the plain type: slices of a memory map take several times as long.
        self._ids, self._starts, self._seed = np.asarray(ids), np.asarray(starts), seed
        self._own = np.array_split(np.arange(batch_size), shard.count)[shard.index]
        self._epoch = -1
        self._position = 0
        self._streams: list[_Stream] = []

    @property
    def windows_per_epoch(self) -> int:
        """Whole windows of T steps per stream."""
        return self.length // self.bptt

    def epoch_start(self, epoch: int) -> int:
        """Where an epoch starts in each stream: at its first line. The characters left out differ in every epoch."""
        return 0

    def read(
        self, position: int, steps: int, device: torch.device | str | None = None, epoch: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets for `steps` characters from `position`, see `Streams.read`.

        Reading on from where the last call ended is fast; anything else looks up where each stream is.
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
        if epoch != self._epoch:
            self._order = LineOrder(self._starts, (self._seed, epoch))
        self._streams = [self._stream_at(int(b), position) for b in self._own]
        self._epoch, self._position = epoch, position

    def _stream_at(self, b: int, position: int) -> "_Stream":
        """Stream b, from a position on."""
        order, begin = self._order, b * self.length
        _, length, offset = order.find(begin)
        if offset:  # the stream begins with the next line
            begin += length - offset
        place, _, offset = order.find((begin + position) % order.chars)
        return _Stream(self._ids, order, place, offset)


class _Stream:
    """One stream: line after line from an offset in the line at a place in the order; after the last comes the first.

    ids: see `LineStreams`.
    """

    def __init__(self, ids: npt.NDArray[Any], order: LineOrder, place: int, offset: int) -> None:
        self._ids, self._order, self._place = ids, order, place
        self._look_ahead()
        self._begins[0] += offset
        self._last = int(ids[self._begins[0] - 1])
        self._chars, self._read = ids[:0], 0
        """Characters that come next, and how many of them were read."""

    def read(self, row: npt.NDArray[np.int64]) -> None:
        """Fill `row` with the last character that was read, and those that follow."""
        row[0] = self._last
        filled = 1
        while filled < len(row):
            if self._read == len(self._chars):
                self._chars, self._read = self._copied(), 0
            part = self._chars[self._read : self._read + len(row) - filled]
            row[filled : filled + len(part)] = part
            filled += len(part)
            self._read += len(part)
        self._last = int(row[-1])

    def _copied(self) -> npt.NDArray[Any]:
        """The next lines, as many as are short enough together; or a part of a long one."""
        if not len(self._begins):
            self._look_ahead()
        lengths = self._ends - self._begins
        ends = np.cumsum(lengths)
        count = int(np.searchsorted(ends, _CHARS, side="right"))
        if not count:
            begin = self._begins[0]
            self._begins[0] += _CHARS
            return self._ids[begin : begin + _CHARS]
        shifts = self._begins[:count] - (ends[:count] - lengths[:count])
        self._begins, self._ends = self._begins[count:], self._ends[count:]
        return self._ids[np.repeat(shifts, lengths[:count]) + np.arange(ends[count - 1])]

    def _look_ahead(self) -> None:
        self._begins, self._ends = self._order.ahead(self._place)
        self._place = (self._place + len(self._begins)) % self._order.lines
