"""Training windows: B contiguous streams of a corpus, read in parallel for truncated backpropagation."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from charlm.errors import DataError
from charlm.system.device import to_device
from charlm.system.formatting import counted
from charlm.system.process_group import WHOLE_BATCH, Shard

_PIECE = 1024
"""Characters of a piece at least, if an epoch reads so many, and less than double. The state is carried over the gap
after it, so pieces should be long."""


class Streams:
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
        ids: npt.NDArray[np.integer[Any]],
        batch_size: int,
        bptt: int,
        name: str = "train split",
        shard: Shard = WHOLE_BATCH,
        share: float = 1.0,
    ) -> None:
        assert ids.ndim == 1, ids.shape
        assert batch_size >= 1, batch_size
        assert bptt >= 1, bptt
        self.batch_size = batch_size
        self.bptt = bptt
        check_length(len(ids), batch_size, bptt, name)
        self._whole = (len(ids) - 1) // batch_size
        self._pieces = max(int(share * self._whole / max(_PIECE, bptt)), 1) if share < 1 else 1
        self._piece = max(int(share * self._whole / self._pieces), bptt)
        self.length = self._pieces * self._piece
        """Characters of each stream that an epoch reads: S if it reads all."""
        # Rows overlap by one: row b ends with the first character of stream b + 1, which is its last target.
        stride = ids.strides[0]
        all_BS = np.lib.stride_tricks.as_strided(
            ids, (batch_size, self._whole + 1), (self._whole * stride, stride), writeable=False
        )
        self._ids_BS = np.split(all_BS, shard.count)[shard.index]

    @property
    def windows_per_epoch(self) -> int:
        """Whole windows of T steps per stream."""
        return self.length // self.bptt

    def epoch_start(self, epoch: int) -> int:
        """Where an epoch starts in each stream.

        A stream is rarely a whole number of windows. Even epochs leave out the remainder at its end, odd epochs at
        its start, so every character is trained on.
        """
        return self.length % self.bptt if epoch % 2 else 0

    def read(
        self, position: int, steps: int, device: torch.device | str | None = None, epoch: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets for `steps` characters from `position` in every stream: two [T, B] int64 tensors.

        B counts the streams of the part; with a share of 1 every epoch reads the same. Both are views of one tensor, so
        write to neither. For a CUDA `device` the copy goes through pinned memory and is asynchronous, in order with the
        device's current stream.
        """
        assert position >= 0, position
        assert 1 <= steps <= self.length - position, (position, steps, self.length)
        at_T = self._places(np.arange(position, position + steps), epoch)
        ids_B2T = self._ids_BS[:, np.stack([at_T, at_T + 1])]
        ids_2TB = np.array(ids_B2T.transpose(1, 2, 0), dtype=np.int64, order="C")
        x_TB, y_TB = to_device(ids_2TB, torch.device(device or "cpu"))
        return x_TB, y_TB

    def _places(self, positions_T: npt.NDArray[np.int64], epoch: int) -> npt.NDArray[np.int64]:
        """Where in a stream the characters at these positions of an epoch are.

        A piece of the first epoch ends where an equal part of the stream does, so the last one ends with the stream.
        """
        piece_T, inside_T = np.divmod(positions_T, self._piece)
        ends_T = (piece_T + 1) * self._whole // self._pieces
        return (ends_T - (epoch + 1) * self._piece + inside_T) % self._whole


def check_length(length: int, batch_size: int, bptt: int, name: str) -> None:
    """DataError if a text of `length` characters is too short for B streams of T steps."""
    needed = batch_size * bptt + 1
    if length < needed:
        raise DataError(
            f"{name}: {counted(length, 'character')}; {counted(batch_size, 'stream')} of {counted(bptt, 'step')} need "
            f"at least {needed:,}; lower train.batch_size or train.bptt, or use more text (data.split)"
        )
