"""Evaluation: the cross-entropy of a whole text, with the state carried through it."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from charlm.cells import cross_entropy
from charlm.errors import DataError
from charlm.model import CharLM, map_state
from charlm.system.device import to_device
from charlm.system.formatting import nats_to_bits
from charlm.system.world import ALONE, WHOLE, Part, World

Ids = npt.NDArray[np.integer[Any]]

STREAMS = 64
"""How many streams to read side by side at most. A single stream is exact but leaves most of the machine idle."""
GPU_STREAMS = 512
"""The same on a GPU, which has more to fill."""
_VALUES = 2**25
"""Values at most of one tensor of a window on a GPU (128 MiB): the layers' inputs, or their products."""
WARMUP = 256
"""Characters that each stream reads unscored first, so that its state is nearly that of one long stream."""
_STEPS = 128
"""Steps of a window at most."""
_LOGITS = 2**23
"""Logits of a window at most (32 MiB): a large vocabulary makes windows shorter than _STEPS."""


@dataclass(frozen=True)
class Evaluation:
    """The score of a text."""

    nats_sum: float
    """Cross-entropy of all targets, summed in float64."""
    targets: int
    """Number of characters scored: all but the first, which has nothing before it."""
    elapsed_s: float
    per_char_nats: npt.NDArray[np.float32] | None = None
    """Cross-entropy of each target, [targets]; None unless asked for."""

    @property
    def nats_per_char(self) -> float:
        return self.nats_sum / self.targets

    @property
    def bits_per_char(self) -> float:
        return nats_to_bits(self.nats_per_char)

    @property
    def chars_per_s(self) -> float:
        return self.targets / max(self.elapsed_s, 1e-9)


def evaluate(
    model: CharLM,
    ids: Ids,
    device: torch.device,
    *,
    streams: int | None = None,
    per_char: bool = False,
    world: World = ALONE,
) -> Evaluation:
    """Score every character of `ids` [N] given the characters before it; DataError if the text is too short.

    The text is cut into up to `streams` contiguous parts, which are read side by side; see `scored_windows`. None: as
    many as the device needs. For a model of lines `ids` must begin with a newline, and each part begins with a line.

    The processes of the world share the streams, and each returns the score of the whole; `per_char` needs a single
    process. The model keeps its mode (training or evaluation).
    """
    assert world.size == 1 or not per_char
    streams = streams or (STREAMS if device.type == "cpu" else GPU_STREAMS)
    cut = Cut.of(ids, streams, model.begins)
    with evaluating(model), torch.inference_mode():
        windows = scored_windows(model, ids, device, cut, part=world.part)
        score = sum_windows(windows, cut, per_char=per_char)
    return replace(score, nats_sum=world.total(score.nats_sum))


@dataclass(frozen=True)
class Cut:
    """A text of N ids cut into B contiguous parts: for each, the place of its first input, and how many it scores."""

    begin_B: npt.NDArray[np.int64]
    length_B: npt.NDArray[np.int64]
    warmup: int
    """Characters before each part that are read unscored."""

    @classmethod
    def of(cls, ids: Ids, streams: int, begins: int | None = None) -> "Cut":
        """Up to `streams` nearly equal parts, fewer if they would be short; DataError if N < 2.

        begins: the id that begins every part, see `CharLM.begins`.
        """
        if len(ids) < 2:
            raise DataError(f"evaluation: found a text of {len(ids)} characters; allowed: 2 or more")
        targets = len(ids) - 1
        B = max(1, min(streams, targets // (4 * WARMUP)))
        begin_B = np.minimum(-(-targets // B) * np.arange(B), targets)
        if begins is not None:
            begin_B = np.array([0, *(_next_place(ids, begins, place) for place in begin_B[1:])])
        length_B = np.diff(begin_B, append=targets)
        return cls(begin_B, length_B, WARMUP if B > 1 and begins is None else 0)

    @property
    def targets(self) -> int:
        return int(self.length_B.sum())

    @property
    def longest(self) -> int:
        return int(self.length_B.max())


def _next_place(ids: Ids, wanted: int, place: int) -> int:
    """Where the id occurs next in `ids`, without its last element; the place of that if it does not."""
    end = len(ids) - 1
    while place < end:
        found = np.flatnonzero(ids[place : min(place + 4096, end)] == wanted)
        if len(found):
            return place + int(found[0])
        place += 4096
    return end


def scored_windows(
    model: CharLM, ids: Ids, device: torch.device, cut: Cut, *, steps: int | None = None, part: Part = WHOLE
) -> Iterator[Tensor]:
    """Yield the cross-entropy in nats, [T, B], of window after window of `ids` [N], cut into B parts.

    Stream b reads the b-th part of the text, in windows of `steps` characters, after the warm-up before its part. The
    state is carried from window to window. Entries past the end of a part are 0.

    part: yield the nats of these streams only, of nearly equal parts of the B; there may be none.

    The model must be in evaluation mode. The nats have a graph unless the caller turns gradients off; the carried
    state is detached between windows, and the caller may change the weights there.
    """
    targets = cut.targets
    mine = np.array_split(np.arange(len(cut.begin_B)), part.count)[part.index]
    if not len(mine):
        return
    begin_B1 = cut.begin_B[mine, None]

    def places_BT(offset: int, length: int) -> npt.NDArray[np.int64]:
        return begin_B1 + np.arange(offset, offset + length)

    def ids_TB(at_BT: npt.NDArray[np.int64]) -> Tensor:
        return to_device(ids[at_BT].T.astype(np.int64, order="C"), device)

    state = None
    for offset, length in _windows(-cut.warmup, 0, most_steps(len(mine), model, device)):
        # Nothing comes before the first stream: what it reads here does not matter, its state is cleared below.
        with torch.no_grad():
            _, state = model.features(ids_TB(places_BT(offset, length).clip(0, targets - 1)), state)
    if state is not None and mine[0] == 0:
        state = map_state(_without_first_stream, state)
    lengths_B = to_device(cut.length_B[mine], device)
    most = min(most_steps(len(mine), model, device), score_steps(len(mine), model))
    for offset, length in _windows(0, cut.longest, steps or most):
        # One copy to the device: the targets are the inputs, a step later.
        both_TB = ids_TB(places_BT(offset, length + 1).clip(0, targets))
        logits, state = model(both_TB[:-1], state)  # [T, B, V]
        nats_TB = cross_entropy(logits, both_TB[1:])
        steps_T1 = torch.arange(offset, offset + length, device=device).unsqueeze(1)
        yield torch.where(steps_T1 < lengths_B, nats_TB, 0.0)
        state = map_state(Tensor.detach, state)


def sum_windows(windows: Iterable[Tensor], cut: Cut, *, per_char: bool = False) -> Evaluation:
    """The score of a text from the nats [T, B] of all its windows, in order; times the windows too."""
    start_s = time.perf_counter()
    total, offset, nats_BS = 0.0, 0, None
    for nats_TB in windows:
        found_TB = nats_TB.detach()
        T, B = found_TB.shape
        # All results stay on the device until the end: reading them here would wait for it at every window.
        total = total + found_TB.sum(dtype=torch.float64)
        if per_char:
            if nats_BS is None:
                nats_BS = found_TB.new_empty(B, cut.longest)
            nats_BS[:, offset : offset + T] = found_TB.T
        offset += T
    flat = None
    if nats_BS is not None:
        rows = zip(nats_BS.cpu().numpy(), cut.length_B, strict=True)
        flat = np.concatenate([row_S[:length] for row_S, length in rows])
    return Evaluation(float(total), cut.targets, time.perf_counter() - start_s, flat)


@contextlib.contextmanager
def evaluating(model: CharLM) -> Iterator[None]:
    """Put the model into evaluation mode for the duration of the block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _windows(start: int, end: int, steps: int) -> Iterator[tuple[int, int]]:
    """(offset, steps) of each window between start and end."""
    return ((offset, min(steps, end - offset)) for offset in range(start, end, steps))


def most_steps(streams: int, model: CharLM, device: torch.device) -> int:
    """Steps of a window so that the widest tensors of a GPU's many streams stay small."""
    if device.type == "cpu":
        return _STEPS
    rows = model.layers.get_parameter("weight_ih_l0").shape[0]
    return max(1, min(_STEPS, _VALUES // (streams * max(rows, model.layers.input_size))))


def score_steps(streams: int, model: CharLM) -> int:
    """Steps of a window so that its logits stay small."""
    return max(1, min(_STEPS, _LOGITS // (streams * model.vocabulary_size)))


def _without_first_stream(state: Tensor) -> Tensor:
    """The state [L, B, H] with stream 0, which begins the text, set to zero."""
    state = state.clone()
    state[:, 0] = 0
    return state
