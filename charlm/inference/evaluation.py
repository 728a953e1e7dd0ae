"""Evaluation: the cross-entropy of a whole text, with the state carried through it."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from charlm.errors import DataError
from charlm.layers import cross_entropy
from charlm.model import CharLM, map_state
from charlm.system.device import to_device
from charlm.system.formatting import counted, nats_to_bits
from charlm.system.process_group import ONE_PROCESS, WHOLE_BATCH, ProcessGroup, Shard

Ids = npt.NDArray[np.integer[Any]]

STREAMS = 64
"""How many streams to read side by side at most. A single stream is exact but leaves most of the machine idle."""
GPU_STREAMS = 512
"""The same on a GPU, which has more to fill."""
_VALUES = 2**25
"""Values at most of one tensor of a window on a GPU (128 MiB): the layers' inputs, or their products."""
WARMUP = 256
"""Characters that each stream reads unscored first, so that its state is nearly that of one long stream."""
_LONG = 4096
"""Characters from which on a line may be read in several parts."""
_SAMPLE = 2**22
"""Characters of a text whose lines are looked at one by one."""
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
    lines: int | None = None
    """Number of lines scored; None unless the model is one of lines."""
    line_nats: npt.NDArray[np.float64] | None = None
    """Nats per character of lines spread over the text, see `LineSample`; None unless asked for, or without lines."""

    @property
    def nats_per_char(self) -> float:
        return self.nats_sum / self.targets

    @property
    def bits_per_char(self) -> float:
        return nats_to_bits(self.nats_per_char)

    @property
    def nats_per_line(self) -> float | None:
        return None if self.lines is None else self.nats_sum / self.lines

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
    per_line: bool = False,
    group: ProcessGroup = ONE_PROCESS,
    check: Callable[[], object] = lambda: None,
) -> Evaluation:
    """Score every character of `ids` [N] given the characters before it; DataError if the text is too short.

    The text is cut into up to `streams` contiguous parts, which are read side by side; see `scored_windows`. None: as
    many as the device needs. For a model of lines `ids` must begin with a newline, and each part begins with a line.
    With `per_line`, the scores of some lines are found too.

    The processes of the group share the streams, and each returns the score of the whole; `per_char` and `per_line`
    need a single process. The model keeps its mode (training or evaluation).

    check: called before the first window and after each, equally often in all processes; what it raises ends the
    evaluation.
    """
    assert group.size == 1 or not (per_char or per_line)
    cut = Cut.of(ids, streams or most_streams(device), model.begins)
    sample = LineSample(ids, cut, model.begins) if per_line and model.begins is not None else None
    with evaluating(model), torch.inference_mode():
        windows = scored_windows(model, ids, device, cut, shard=group.shard)
        windows = _checked(check, sample.passing(windows) if sample else windows)
        score = sum_windows(windows, cut, per_char=per_char)
    return replace(score, nats_sum=group.sum(score.nats_sum), line_nats=sample.nats() if sample else None)


def _checked(check: Callable[[], object], windows: Iterable[Tensor]) -> Iterator[Tensor]:
    check()
    for window in windows:
        yield window
        check()


@dataclass(frozen=True)
class Cut:
    """A text of N ids cut into B contiguous parts: for each, the place of its first input, and how many it scores."""

    begin_B: npt.NDArray[np.int64]
    length_B: npt.NDArray[np.int64]
    warmup: int
    """Characters before each part that are read unscored."""
    lines: int | None = None
    """Number of lines, where lines are scored."""

    @classmethod
    def of(cls, ids: Ids, streams: int, begins: int | None = None) -> "Cut":
        """Up to `streams` nearly equal parts, fewer if they would be short; DataError if N < 2.

        begins: the id that begins every part, see `CharLM.begins`.
        """
        if len(ids) < 2:
            raise DataError(f"evaluation: found a text of {counted(len(ids), 'character')}; allowed: 2 or more")
        targets = len(ids) - 1
        B = max(1, min(streams, targets // (4 * WARMUP)))
        begin_B = np.minimum(-(-targets // B) * np.arange(B), targets)
        if begins is not None:
            begin_B = np.array([0, *(_next_place(ids, begins, place) for place in begin_B[1:])])
        length_B = np.diff(begin_B, append=targets)
        lines = None if begins is None else _count(ids[1:], begins)
        return cls(begin_B, length_B, WARMUP if B > 1 and begins is None else 0, lines)

    @classmethod
    def of_lines(cls, ids: Ids, read: int, streams: int, begins: int | np.integer[Any]) -> "Cut":
        """Up to `streams` nearly equal parts of the ids [N] after the first `read` ones, even if they are short.

        Each begins with a line, unless the line before goes on for more than _LONG characters: then the part begins
        inside it, after the WARMUP before.
        """
        first, end = read - 1, len(ids) - 1
        places = first + np.flatnonzero(ids[first:end] == begins)
        B = min(streams, max(len(places), (end - first) // _LONG, 1))
        begin_B = first + (end - first) * np.arange(B) // B
        next_B = np.append(places, end)[np.searchsorted(places, begin_B)]
        begin_B[1:] = np.where(next_B - begin_B > _LONG, begin_B, next_B)[1:]
        begin_B = np.unique(begin_B[begin_B < end])
        inside = bool((ids[begin_B] != begins).any())
        return cls(begin_B, np.diff(begin_B, append=end), WARMUP if inside else 0)

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


def _count(ids: Ids, wanted: int) -> int:
    """How often the id occurs; in parts, because `ids` may be larger than memory."""
    return sum(int(np.count_nonzero(ids[at : at + 2**22] == wanted)) for at in range(0, len(ids), 2**22))


class LineSample:
    """The scores of some lines of a text, taken from the windows of its evaluation: those in the first characters of
    each part of the cut, so they are spread over the text.
    """

    def __init__(self, ids: Ids, cut: Cut, newline: int) -> None:
        self._ids, self._cut, self._newline = ids, cut, newline
        self._steps = -(-_SAMPLE // len(cut.begin_B))
        self._windows: list[Tensor] = []

    def passing(self, windows: Iterable[Tensor]) -> Iterator[Tensor]:
        """Pass on the nats [T, B] of all windows, and keep the first ones."""
        offset = 0
        for nats_TB in windows:
            if offset < self._steps:
                self._windows.append(nats_TB)
            offset += len(nats_TB)
            yield nats_TB

    def nats(self) -> npt.NDArray[np.float64] | None:
        """Nats per character of each line of the sample; None if no line ends there."""
        found_BS = torch.cat(self._windows).T.cpu().numpy()
        means = []
        for begin, length, nats_S in zip(self._cut.begin_B, self._cut.length_B, found_BS, strict=True):
            read = min(int(length), len(nats_S))
            ends = np.flatnonzero(self._ids[begin + 1 : begin + 1 + read] == self._newline) + 1
            means.append(line_sums(nats_S, ends) / np.diff(ends, prepend=0))
        found = np.concatenate(means)
        return found if len(found) else None


def line_sums(nats: npt.NDArray[np.floating[Any]], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The sums of lines that stand one behind the other in `nats` and end at `ends`, in float64."""
    if not len(ends):
        return np.zeros(0)
    return np.add.reduceat(nats[: ends[-1]].astype(np.float64), np.concatenate([[0], ends[:-1]]))


def scored_windows(
    model: CharLM, ids: Ids, device: torch.device, cut: Cut, *, steps: int | None = None, shard: Shard = WHOLE_BATCH
) -> Iterator[Tensor]:
    """Yield the cross-entropy in nats, [T, B], of window after window of `ids` [N], cut into B parts.

    Stream b reads the b-th part of the text, in windows of `steps` characters, after the warm-up before its part. The
    state is carried from window to window. Entries past the end of a part are 0.

    shard: yield the nats of these streams only, of nearly equal parts of the B; there may be none. All parts have the
    same number of windows.

    The model must be in evaluation mode. The nats have a graph unless the caller turns gradients off; the carried
    state is detached between windows, and the caller may change the weights there.
    """
    last = len(ids) - 1
    mine = np.array_split(np.arange(len(cut.begin_B)), shard.count)[shard.index]
    streams = -(-len(cut.begin_B) // shard.count)  # of the largest part
    most = most_steps(streams, model, device)
    steps = steps or min(most, score_steps(streams, model))
    if not len(mine):
        yield from (torch.zeros(length, 0, device=device) for _, length in _windows(0, cut.longest, steps))
        return
    begin_B1 = cut.begin_B[mine, None]

    def places_BT(offset: int, length: int) -> npt.NDArray[np.int64]:
        return begin_B1 + np.arange(offset, offset + length)

    def ids_TB(at_BT: npt.NDArray[np.int64]) -> Tensor:
        return to_device(ids[at_BT].T.astype(np.int64, order="C"), device)

    state = None
    for offset, length in _windows(-cut.warmup, 0, most):
        # Nothing comes before a part at the text's beginning: what it reads here does not matter, as its state is
        # cleared below.
        with torch.no_grad():
            _, state = model.features(ids_TB(places_BT(offset, length).clip(0, last - 1)), state)
    if state is not None and cut.begin_B[mine[0]] == 0:
        state = map_state(_without_first_stream, state)
    lengths_B = to_device(cut.length_B[mine], device)
    for offset, length in _windows(0, cut.longest, steps):
        # One copy to the device: the targets are the inputs, a step later.
        both_TB = ids_TB(places_BT(offset, length + 1).clip(0, last))
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
    return Evaluation(float(total), cut.targets, time.perf_counter() - start_s, flat, cut.lines)


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


def most_streams(device: torch.device) -> int:
    """How many streams to read side by side at most."""
    return STREAMS if device.type == "cpu" else GPU_STREAMS


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
