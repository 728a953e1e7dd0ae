"""Read texts through a network: many streams side by side, window after window, with the state carried between them."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from charlm.data.vocabulary import Ids
from charlm.layers import RecurrentState, cross_entropy
from charlm.model import CharLM, Network, overflow
from charlm.system.arrays import Array, Floats32, Ints
from charlm.system.device import to_device
from charlm.system.formatting import nats_to_bits

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
_TOP, _PREDICTED = 5, 256
"""How many of the likeliest characters `predict` keeps, and steps of its windows."""

Series = tuple[int, str, bool]
"""A state or gate of all units of a layer over time: the layer, its name, and whether it is a gate."""
START = np.zeros(1, np.int64)
"""Where one stream begins that reads a whole text."""
Predictions = dict[str, Array]
"""What a model predicts of the characters of a text, see `predict`."""


class Reader:
    """Reads B stretches of a text side by side, window after window, and carries the state from each to the next.

    The stretches begin at `starts_B` of `ids`, where offsets are 0, with the given state or the initial one. Beyond the
    ends of `ids` its first or last id repeats. The results have a graph unless the caller turns gradients off; the
    carried state is detached, and the caller may change the weights between windows.
    """

    def __init__(self, model: Network, ids: Ids, starts_B: Ints, state: RecurrentState | None = None) -> None:
        self.state = state or model.initial_state(len(starts_B))
        self._model, self._ids, self._starts_B = model, ids, starts_B

    def features(self, offset: int, steps: int, streams: int | None = None) -> Tensor:
        """Read a window: the input of the logits after each id, [T, B, H]. streams: how many go on; the others end."""
        return self._read(self.ids(offset, steps, streams))

    def nats(self, offset: int, steps: int, streams: int | None = None) -> Tensor:
        """Read a window: the cross-entropy of the id after each, [T, B]."""
        # One copy to the device: the targets are the inputs, a step later.
        ids_TB = self.ids(offset, steps + 1, streams)
        return cross_entropy(self._model.logits(self._read(ids_TB[:-1])), ids_TB[1:])

    def ids(self, offset: int, steps: int, streams: int | None = None) -> Tensor:
        """The ids of a window, [T, B]; reads nothing."""
        places_BT = self._starts_B[:streams, None] + np.arange(offset, offset + steps)
        ids_BT = self._ids[places_BT.clip(0, len(self._ids) - 1)]
        return to_device(ids_BT.T.astype(np.int64, order="C"), self._model.device)

    def _read(self, ids_TB: Tensor) -> Tensor:
        streams = ids_TB.shape[1]
        state = tuple(layers[:, :streams].contiguous() for layers in self.state)
        features_TBH, state = self._model.features(ids_TB, state)
        self.state = tuple(layers.detach() for layers in state)
        return features_TBH


@torch.inference_mode()
def activations(model: CharLM, ids: Ids) -> Iterator[dict[Series, Floats32]]:
    """Yield every state and gate after each id, [T, H] each, for stretch after stretch of `ids` [N].

    By the reference equations, one step after the other. The model is in evaluation mode on the CPU.
    """
    reader, state = Reader(model, ids, START), None
    for start, steps in windows_between(0, len(ids), STEPS):
        _, state, activations = model.outputs_and_activations(reader.ids(start, steps), state)
        yield {
            (layer, name, gate): torch.cat(steps).numpy()
            for layer, recorded in enumerate(activations)
            for (name, gate), steps in recorded.items()
        }


@torch.inference_mode()
def predict(model: Network, ids: Ids) -> Predictions:
    """The predictions of all characters of `ids` [N] by one stream, from the initial state on.

        bits     [N]     −log2 of the probability of the true character; nan for the first, which has no prediction
        entropy  [N]     expected bits under the model's own probabilities; nan for the first
        rank     [N]     1 if no other character was likelier; 0 for the first
        top, p   [N, K]  the likeliest characters, the likeliest first, and their probabilities

    The model is in evaluation mode on the CPU. Probabilities are computed in float64 from its logits; DivergenceError
    if those are not finite.
    """
    N, K = len(ids), min(_TOP, model.vocabulary_size)
    bits_N, entropy_N = np.full((2, N), np.nan)
    rank_N, top_NK, p_NK = np.zeros(N, np.int64), np.zeros((N, K), np.int64), np.zeros((N, K))
    reader = Reader(model, ids, START)
    for start, steps in windows_between(0, N - 1, _PREDICTED):
        logits_T1V = model.logits(reader.features(start, steps))
        log_p_TV = logits_T1V[:, 0].double().log_softmax(-1)
        if log_p_TV.isnan().any():
            raise overflow()
        true_T1 = log_p_TV.gather(1, reader.ids(start + 1, steps))
        scored = slice(start + 1, start + 1 + steps)
        bits_N[scored] = nats_to_bits(1) * -true_T1[:, 0].numpy()
        p_TV = log_p_TV.exp()
        entropy_N[scored] = nats_to_bits(1) * torch.special.entr(p_TV).sum(-1).numpy()
        rank_N[scored] = 1 + (log_p_TV > true_T1).sum(-1).numpy()
        likeliest = p_TV.topk(K, dim=-1)
        top_NK[scored], p_NK[scored] = likeliest.indices.numpy(), likeliest.values.numpy()
    return {"bits": bits_N, "entropy": entropy_N, "rank": rank_N, "top": top_NK, "p": p_NK}


def windows_between(start: int, end: int, steps: int) -> Iterator[tuple[int, int]]:
    """(offset, steps) of each window between start and end."""
    return ((offset, min(steps, end - offset)) for offset in range(start, end, steps))


def most_streams(model: Network) -> int:
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
