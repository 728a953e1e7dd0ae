"""Training windows: B streams of a corpus side by side, for truncated backpropagation."""

import numpy as np
import numpy.typing as npt
import torch

from charlm.data.vocabulary import Ids
from charlm.errors import DataError
from charlm.system.device import CPU, to_device
from charlm.system.formatting import counted
from charlm.system.process_group import WHOLE_BATCH, Shard

_PIECE = 1024
"""Minimum length of a piece in characters, or T if that is longer; pieces are shorter than twice that. An epoch that
reads fewer is one piece. State carries across gaps, so pieces should be long."""
_BLOCK, _GROUP = 1 << 8, 1 << 10
"""Records of a block, which stand together in the text, and blocks whose records are shuffled together."""


class Streams:
    """B streams of S = (N - 1) // B characters, end to end in a corpus of N characters.

    Stream b reads inputs ids[b·S : (b+1)·S]; the targets are the characters after each of them. Up to B − 1 characters
    at the end are unused. With a share below 1 an epoch reads pieces of each stream, with gaps, and the next epoch the
    pieces before these. Positions count the characters that an epoch reads.

    ids         [N] unsigned integers, which may be memory-mapped; never copied as a whole
    batch_size  B
    bptt        T, steps per window
    shard       the streams to read, of equal shards of the B
    share       share of each stream that an epoch reads, above 0
    """

    def __init__(
        self,
        ids: Ids,
        batch_size: int,
        bptt: int,
        shard: Shard = WHOLE_BATCH,
        share: float = 1.0,
    ) -> None:
        check_length(len(ids), batch_size, bptt, "train split")
        self.bptt = bptt
        self._ids = np.asarray(ids)  # a view of the plain type: slices of a memory map take several times as long
        self._whole = (len(ids) - 1) // batch_size  # characters of a stream
        self._pieces = 1  # that an epoch reads of each stream
        if share < 1:
            self._pieces = max(int(share * self._whole / max(_PIECE, bptt)), 1)
        self._piece = max(int(share * self._whole / self._pieces), bptt)  # characters of a piece
        self.length = self._pieces * self._piece
        """Characters of each stream that an epoch reads."""
        self._begins_B = np.split(np.arange(batch_size) * self._whole, shard.count)[shard.index]
        used = batch_size * self._whole
        self._inputs_SB, self._targets_SB = (
            np.split(ids.reshape(batch_size, self._whole).T, shard.count, axis=1)[shard.index]  # a view
            for ids in (self._ids[:used], self._ids[1 : used + 1])
        )

    @property
    def windows_per_epoch(self) -> int:
        """Whole windows of T steps per stream."""
        return self.length // self.bptt

    def epoch_start(self, epoch: int) -> int:
        """Even epochs leave out the rest after the last whole window, odd epochs one before the first."""
        return self.length % self.bptt if epoch % 2 else 0

    def read(
        self, position: int, steps: int, device: torch.device = CPU, epoch: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets for `steps` characters from `position` in the streams of the shard: two [T, B] of int64.

        Both are views of one tensor, so write to neither. Copying to a GPU is asynchronous.
        """
        assert position >= 0, position
        assert 1 <= steps <= self.length - position, (position, steps, self.length)
        x_TB, y_TB = to_device(self._window(position, steps, epoch), device).unbind()
        return x_TB, y_TB

    def _window(self, position: int, steps: int, epoch: int) -> npt.NDArray[np.int64]:
        """Inputs and targets, [2, T, B]."""
        ids_2TB = np.empty((2, steps, len(self._begins_B)), np.int64)
        done = 0
        while done < steps:
            # A piece of the first epoch ends where an equal part of the stream does, so the last one ends with it.
            piece, inside = divmod(position + done, self._piece)
            end = (piece + 1) * self._whole // self._pieces
            at = (end - (epoch + 1) * self._piece + inside) % self._whole
            count = min(steps - done, self._piece - inside, self._whole - at)
            ids_2TB[0, done : done + count] = self._inputs_SB[at : at + count]
            ids_2TB[1, done : done + count] = self._targets_SB[at : at + count]
            done += count
        return ids_2TB


def check_length(length: int, batch_size: int, bptt: int, name: str) -> None:
    """DataError if a text of `length` characters is too short for B streams of T steps."""
    needed = batch_size * bptt + 1
    if length < needed:
        allowed = f"{counted(batch_size, 'stream')} of {counted(bptt, 'step')} need at least {needed:,}"
        advice = "lower train.batch_size or train.bptt, or use more text (data.split)"
        raise DataError(f"{name}: {counted(length, 'character')}; {allowed}; {advice}")


def record_order(records: int, seed: tuple[int, ...], dtype: npt.DTypeLike) -> Ids:
    """A random permutation of 0 … records − 1.

    Shuffles blocks of neighboring records, and then the records of each group of blocks. So reading stays near few
    places of a text that is larger than memory.
    """
    # Only RandomState draws the same in every version of NumPy, as a run that resumes needs it.
    random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed)))
    order = np.arange(records, dtype=dtype)
    blocks = order[: records // _BLOCK * _BLOCK].reshape(-1, _BLOCK)
    blocks[:] = blocks[random.permutation(len(blocks))]
    for begin in range(0, records, _GROUP * _BLOCK):
        random.shuffle(order[begin : begin + _GROUP * _BLOCK])
    return order


class RecordStreams(Streams):
    """B streams of whole records: each record once per epoch, in a new order for every epoch.

    Stream b has S = N // B characters: an end, and then records, from the first that starts at or after b · S in the
    epoch's order; the last may be cut. Uses 8 bytes of memory per record, 16 while an epoch begins.

    ids         [1 + N] unsigned integers: an end, then the records, each with its end; may be memory-mapped
    starts      [records + 1]: where in `ids` each record begins; the last element is 1 + N
    seed        determines the order of the records
    others      see `Streams`
    """

    def __init__(
        self,
        ids: Ids,
        starts: Ids,
        batch_size: int,
        bptt: int,
        shard: Shard = WHOLE_BATCH,
        seed: int = 1,
    ) -> None:
        super().__init__(ids, batch_size, bptt, shard)
        self._starts = np.asarray(starts)
        self._seed, self._epoch = seed, -1

    def epoch_start(self, epoch: int) -> int:
        """The same in every epoch, whose order is another one."""
        return 0

    def _begin(self, epoch: int) -> None:
        """Draw the order of an epoch."""
        starts, dtype = self._starts, self._starts.dtype
        self._in_text = self._in_order = starts[:0]  # frees those of the epoch before
        order = record_order(len(starts) - 1, (self._seed, epoch), dtype)
        self._in_text = starts[order]
        """Where each record of the order begins in `ids`."""
        order += 1
        self._in_order = np.zeros_like(starts)
        """Where it begins if the records stand one after another in this order."""
        np.cumsum(starts[order] - self._in_text, out=self._in_order[1:])
        first_records = np.searchsorted(self._in_order, self._begins_B.astype(dtype))
        self._firsts_B = self._in_order[first_records].astype(np.int64)
        self._epoch = epoch

    def _window(self, position: int, steps: int, epoch: int) -> npt.NDArray[np.int64]:
        if epoch != self._epoch:
            self._begin(epoch)
        begins_B = self._firsts_B + position - 1  # the character before the first target
        in_order_BT = (begins_B[:, None] + np.arange(steps + 1)) % (len(self._ids) - 1)
        # Equal types, or NumPy would copy all of `_in_order`.
        records_BT = np.searchsorted(self._in_order, in_order_BT.astype(self._in_order.dtype), side="right") - 1
        inside_BT = in_order_BT - self._in_order[records_BT].astype(np.int64)
        places_TB = (self._in_text[records_BT].astype(np.int64) + inside_BT).T
        return self._ids[np.stack([places_TB[:-1], places_TB[1:]])].astype(np.int64)
