"""Training windows: B streams of a corpus side by side, for truncated backpropagation."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from charlm.data.hashes import scattered
from charlm.data.vocabulary import Ids
from charlm.errors import DataError
from charlm.system.device import to_device
from charlm.system.formatting import counted
from charlm.system.process_group import WHOLE_BATCH, Shard

_PIECE = 1024
"""Minimum length of a piece in characters, or T if that is longer; pieces are shorter than twice that. An epoch that
reads fewer is one piece. State carries across gaps, so pieces should be long."""
_BLOCK = 1 << 8
"""Lines that stand together in the text, and that are drawn together."""
_GROUP = 1 << 10
"""Blocks whose lines are shuffled together."""
_AHEAD = 256
"""Lines that a stream looks up at once."""
_ROUNDS = 8


class Windows:
    """B streams of a text side by side, read in windows of T steps."""

    length: int
    """Characters of each stream that an epoch reads."""

    def __init__(self, ids: Ids, batch_size: int, bptt: int, name: str) -> None:
        assert ids.ndim == 1, ids.shape
        assert batch_size >= 1, batch_size
        assert bptt >= 1, bptt
        check_length(len(ids), batch_size, bptt, name)
        self.batch_size, self.bptt = batch_size, bptt

    @property
    def windows_per_epoch(self) -> int:
        """Whole windows of T steps per stream."""
        return self.length // self.bptt

    def epoch_start(self, epoch: int) -> int:
        """Where an epoch starts in each stream."""
        raise NotImplementedError

    def read(
        self, position: int, steps: int, device: torch.device | str | None = None, epoch: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets for `steps` characters from `position` in every stream: two [T, B] int64 tensors.

        B counts the streams of the shard. Both are views of one tensor, so write to neither. For a CUDA `device` the
        copy goes through pinned memory and is asynchronous, in order with the device's current stream.
        """
        assert position >= 0, position
        assert 1 <= steps <= self.length - position, (position, steps, self.length)
        x_TB, y_TB = to_device(self._read(position, steps, epoch), torch.device(device or "cpu"))
        return x_TB, y_TB

    def _read(self, position: int, steps: int, epoch: int) -> npt.NDArray[np.int64]:
        """Inputs and targets, [2, T, B]."""
        raise NotImplementedError


class Streams(Windows):
    """B streams of S = (N - 1) // B characters, end to end in a corpus of N characters.

    Stream b reads inputs ids[b·S : (b+1)·S]; its targets are the characters that follow each of them. The last target
    of a stream is the first input of the next. Up to B − 1 characters at the end are unused. A reader that
    takes only whole windows also skips S mod T of each stream.

    With a share below 1 an epoch reads pieces of each stream with gaps between them, and the next epoch the pieces
    before these. Positions count the characters that an epoch reads.

    ids         [N] unsigned integers, which may be memory-mapped; never copied as a whole
    batch_size  B
    bptt        T, steps per window; used only for the minimum length and `windows_per_epoch`
    name        what errors call the ids: "train split"
    shard       the streams to read, of equal shards of the B
    share       of each stream that an epoch reads, above 0
    """

    def __init__(
        self,
        ids: Ids,
        batch_size: int,
        bptt: int,
        name: str = "train split",
        shard: Shard = WHOLE_BATCH,
        share: float = 1.0,
    ) -> None:
        super().__init__(ids, batch_size, bptt, name)
        self._whole = (len(ids) - 1) // batch_size
        self._pieces = max(int(share * self._whole / max(_PIECE, bptt)), 1) if share < 1 else 1
        self._piece = max(int(share * self._whole / self._pieces), bptt)
        self.length = self._pieces * self._piece
        # Rows overlap by one: row b ends with the first character of stream b + 1, which is its last target.
        stride = ids.strides[0]
        all_BS = np.lib.stride_tricks.as_strided(
            ids, (batch_size, self._whole + 1), (self._whole * stride, stride), writeable=False
        )
        self._ids_BS = np.split(all_BS, shard.count)[shard.index]

    def epoch_start(self, epoch: int) -> int:
        """Even epochs leave out the rest after the last whole window, odd epochs one before the first."""
        return self.length % self.bptt if epoch % 2 else 0

    def _read(self, position: int, steps: int, epoch: int) -> npt.NDArray[np.int64]:
        # A piece of the first epoch ends where an equal part of the stream does, so the last one ends with the stream.
        piece_T, inside_T = np.divmod(np.arange(position, position + steps), self._piece)
        ends_T = (piece_T + 1) * self._whole // self._pieces
        at_T = (ends_T - (epoch + 1) * self._piece + inside_T) % self._whole
        ids_B2T = self._ids_BS[:, np.stack([at_T, at_T + 1])]
        return np.array(ids_B2T.transpose(1, 2, 0), dtype=np.int64, order="C")


def check_length(length: int, batch_size: int, bptt: int, name: str) -> None:
    """DataError if a text of `length` characters is too short for B streams of T steps."""
    needed = batch_size * bptt + 1
    if length < needed:
        raise DataError(
            f"{name}: {counted(length, 'character')}; {counted(batch_size, 'stream')} of {counted(bptt, 'step')} need "
            f"at least {needed:,}; lower train.batch_size or train.bptt, or use more text (data.split)"
        )


def shuffled(places: npt.ArrayLike, n: int, seed: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """What stands at these places of a random order of 0 … n − 1, in constant memory.

    A Feistel network (Luby & Rackoff 1988) permutes the numbers of 2w bits; a result of n or more is permuted again
    until it is smaller (Black & Rogaway 2002).
    """
    half = np.uint64(-(-max((n - 1).bit_length(), 2) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    keys = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64)
    drawn = np.array(places, np.uint64)
    outside = np.ones(len(drawn), bool)
    while outside.any():
        left, right = drawn[outside] >> half, drawn[outside] & mask
        for key in keys:
            left, right = right, left ^ (scattered(right ^ key) & mask)
        drawn[outside] = (left << half) | right
        outside = drawn >= n
    return drawn.astype(np.int64)


class LineOrder:
    """A random order of the lines of a text that takes little time and memory even for a hundred million lines.

    Blocks of lines that stand together in the text are drawn in random order, and put into groups. The lines of each
    group are shuffled. The order of a text with up to 262,144 lines is thus any; in larger texts reading stays near few
    places of the text at a time, so that it may be larger than memory.

    starts      see `LineStreams`
    seed        what the order depends on
    """

    def __init__(self, starts: Ids, seed: tuple[int, ...]) -> None:
        self._starts, self._seed, self.lines = starts, seed, len(starts) - 1
        blocks = -(-self.lines // _BLOCK)
        self._firsts = shuffled(np.arange(blocks), blocks, seed) * _BLOCK
        ends = np.minimum(self._firsts + _BLOCK, self.lines)
        self._sizes = ends - self._firsts
        chars = starts[ends].astype(np.int64) - starts[self._firsts].astype(np.int64)
        groups = np.arange(0, blocks, _GROUP)
        self._group_lines = np.r_[0, np.cumsum(np.add.reduceat(self._sizes, groups))]
        self._group_chars = np.r_[0, np.cumsum(np.add.reduceat(chars, groups))]
        self.chars = int(self._group_chars[-1])
        self._cached = -1, chars
        """A group, and where its lines begin in characters of the order."""

    def ahead(self, place: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Where the lines from this place of the order on begin and end in the text: some, at least one."""
        group = int(np.searchsorted(self._group_lines, place, side="right")) - 1
        first, end = self._group_lines[group : group + 2]
        return self._bounds(group, np.arange(place, min(place + _AHEAD, end)) - first)

    def find(self, char: int) -> tuple[int, int, int]:
        """The line that has this character of the order: its place, the character's offset in it, and those after."""
        group = int(np.searchsorted(self._group_chars, char, side="right")) - 1
        if group != self._cached[0]:
            begins, ends = self._bounds(group, np.arange(self._group_lines[group + 1] - self._group_lines[group]))
            self._cached = group, self._group_chars[group] + np.r_[0, np.cumsum(ends - begins)]
        begins = self._cached[1]
        inside = int(np.searchsorted(begins, char, side="right")) - 1
        begin, end = begins[inside : inside + 2].tolist()
        return int(self._group_lines[group]) + inside, char - begin, end - char

    def _bounds(self, group: int, places: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Begin and end in the text of the lines at these places of a group's order."""
        blocks = slice(group * _GROUP, (group + 1) * _GROUP)
        block_ends = np.cumsum(self._sizes[blocks])
        drawn = shuffled(places, int(block_ends[-1]), (*self._seed, group + 1))
        block = np.searchsorted(block_ends, drawn, side="right")
        lines = drawn - (block_ends - self._sizes[blocks])[block] + self._firsts[blocks][block]
        return self._starts[lines].astype(np.int64), self._starts[lines + 1].astype(np.int64)


class LineStreams(Windows):
    """B streams of whole lines, each line once in an epoch, in an order of its own for every epoch.

    A stream is the newline that starts its first line, and then line after line. It begins with the first line of the
    epoch's order that starts at or behind b · S characters of it, and has S = N // B characters, so that the last line
    may be cut. Lines that start in the last characters of the order follow those at its beginning.

    ids         [1 + N] unsigned integers: a newline, then the lines, each with its newline; may be memory-mapped
    starts      [lines + 1]: where in `ids` each line begins; the last element is 1 + N
    seed        what the order of lines depends on
    others      see `Streams`
    """

    def __init__(
        self,
        ids: Ids,
        starts: Ids,
        batch_size: int,
        bptt: int,
        name: str = "train split",
        shard: Shard = WHOLE_BATCH,
        seed: int = 1,
    ) -> None:
        super().__init__(ids, batch_size, bptt, name)
        self.length = (len(ids) - 1) // batch_size
        # Views of the plain type: slices of a memory map take several times as long.
        self._ids, self._starts, self._seed = np.asarray(ids), np.asarray(starts), seed
        self._own = np.array_split(np.arange(batch_size), shard.count)[shard.index].tolist()
        self._next = -1, 0
        """The epoch and the position at which each stream is."""
        self._lines: list[Iterator[Ids]] = []
        self._ahead: list[Ids] = []
        """For each stream the next lines; and what it has begun, from the last character that was read on."""

    def epoch_start(self, epoch: int) -> int:
        """At the first line. The characters left out differ in every epoch."""
        return 0

    def _read(self, position: int, steps: int, epoch: int) -> npt.NDArray[np.int64]:
        """Reading on from where the last call ended is fast; anything else looks up where each stream is."""
        if epoch != self._next[0]:
            self._order = LineOrder(self._starts, (self._seed, epoch))
        if (epoch, position) != self._next:
            self._lines = [self._lines_from(b, position) for b in self._own]
            self._ahead = [next(lines) for lines in self._lines]
        self._next = epoch, position + steps
        ids_TB = np.stack([self._row(stream, steps + 1) for stream in range(len(self._own))], axis=1)
        return np.stack([ids_TB[:-1], ids_TB[1:]])

    def _lines_from(self, b: int, position: int) -> Iterator[Ids]:
        """The lines of stream b from a position on; after the last line of the order comes the first."""
        begin = b * self.length
        _, offset, rest = self._order.find(begin)
        if offset:  # the stream begins with the next line
            begin += rest
        place, offset, _ = self._order.find((begin + position) % self._order.chars)
        offset -= 1  # the character before the first that is a target
        while True:
            begins, ends = self._order.ahead(place)
            begins[0] += offset
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                yield self._ids[begin:end]
            place, offset = (place + len(begins)) % self._order.lines, 0

    def _row(self, stream: int, count: int) -> npt.NDArray[np.int64]:
        """The next characters of a stream, the first of them the last one that was read."""
        row, filled = np.empty(count, np.int64), 0
        while True:
            read = self._ahead[stream][: count - filled]
            row[filled : filled + len(read)] = read
            filled += len(read)
            if filled == count:
                self._ahead[stream] = self._ahead[stream][len(read) - 1 :]
                return row
            self._ahead[stream] = next(self._lines[stream])
