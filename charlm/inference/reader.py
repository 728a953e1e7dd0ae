"""Read texts through a network: many streams side by side, window after window, with the state carried between them."""

import contextlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from charlm.data.vocabulary import Ids
from charlm.layers import RecurrentState, cross_entropy
from charlm.model import Network
from charlm.system.device import to_device

STREAMS = 64
"""How many streams to read side by side at most. A single stream is exact but leaves most of the machine idle."""
GPU_STREAMS = 512
"""The same on a GPU, which has more to fill."""
STEPS = 128
"""Steps of a window at most, unless a text is long."""
_LOGITS = 2**23
"""Logits of a window at most (32 MiB): a large vocabulary makes windows shorter."""
_VALUES = 2**25
"""Values at most of one tensor of a window on a GPU (128 MiB): the layers' inputs, or their products."""


class Reader:
    """Reads windows of ids through a model, and carries the state, detached, from each window to the next.

    A window of fewer streams than the one before goes on with the first of them. The results have a graph unless the
    caller turns gradients off, and the caller may change the weights between windows.
    """

    def __init__(self, model: Network, state: RecurrentState) -> None:
        self.model = model
        self.state = state

    def features(self, x_TB: Tensor) -> Tensor:
        """The input of the logits after each id of a window, [T, B, H]."""
        streams = x_TB.shape[1]
        state = tuple(layers[:, :streams].contiguous() for layers in self.state)
        features_TBH, state = self.model.features(x_TB, state)
        self.state = tuple(layers.detach() for layers in state)
        return features_TBH

    def nats(self, ids_TB: Tensor) -> Tensor:
        """The cross-entropy of each id of a window [T + 1, B] but those of its first row: [T, B].

        Reads all rows but the last, with which the next window begins.
        """
        logits_TBV = self.model.logits(self.features(ids_TB[:-1]))
        return cross_entropy(logits_TBV, ids_TB[1:])


def side_by_side(ids: Ids, starts_B: npt.NDArray[np.int64], length: int, device: torch.device) -> Tensor:
    """The ids [length, B] of B stretches of a text; beyond its ends they are its first or last id."""
    places_BT = starts_B[:, None] + np.arange(length)
    ids_BT = ids[places_BT.clip(0, len(ids) - 1)]
    return to_device(ids_BT.T.astype(np.int64, order="C"), device)


def windows(start: int, end: int, steps: int) -> Iterator[tuple[int, int]]:
    """(offset, steps) of each window between start and end."""
    return ((offset, min(steps, end - offset)) for offset in range(start, end, steps))


def most_streams(model: Network) -> int:
    """How many streams to read side by side at most."""
    return STREAMS if model.device.type == "cpu" else GPU_STREAMS


def window_steps(streams: int, model: Network, longest: int = STEPS) -> int:
    """Steps of a window, at most so many, so that its logits and a GPU's widest tensors stay small."""
    logits, widest = model.widths
    steps = min(longest, _LOGITS // (streams * logits))
    if model.device.type != "cpu":
        steps = min(steps, _VALUES // (streams * widest))
    return max(1, steps)


@contextlib.contextmanager
def evaluating(model: Network) -> Iterator[None]:
    """Put the model into evaluation mode for the duration of the block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
