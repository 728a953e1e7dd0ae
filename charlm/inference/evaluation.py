"""Cross-entropy of a whole text, with the state carried through it."""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from charlm.cells import cross_entropy
from charlm.errors import DataError
from charlm.model import CharLM, map_state
from charlm.system.formatting import nats_to_bits

STREAMS = 64
"""Streams read side by side at most; one alone is exact but leaves most of the machine idle."""
WARMUP = 256
"""Characters each stream reads, unscored, before its own: the state then is what one long stream would have."""
_STEPS = 128
_LOGITS = 2**23
"""Logits computed at once at most, 32 MiB of them: with a large vocabulary, fewer than _STEPS steps."""


@dataclass(frozen=True)
class Evaluation:
    """The score of a text."""

    nats_sum: float
    """Cross-entropy of all targets, summed in float64."""
    targets: int
    """Characters scored: all of the text but its first, which nothing precedes."""
    elapsed_s: float
    per_char_nats: npt.NDArray[np.float32] | None = None
    """Cross-entropy of each target, [targets], where asked for."""

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
    ids: npt.NDArray[np.integer[Any]],
    device: torch.device,
    *,
    streams: int = STREAMS,
    steps: int | None = None,
    per_char: bool = False,
    learn: Callable[[torch.Tensor], None] | None = None,
) -> Evaluation:
    """Score every character of `ids` [N] given those before it; DataError when there is none to score.

    The text is cut into `streams` contiguous parts (`streams_of` says how many) that are read side by side, each
    after the WARMUP characters before it, in windows of `steps`, if given. The model is left in the mode it came in.

    `learn` gets the nats [T, B] of each window, with their graph, once they are taken into the score; it may change
    the weights that the windows behind it are scored with. Behind the text's end they are 0.
    """
    targets = len(ids) - 1
    if targets < 1:
        raise DataError(f"evaluation: found a text of {len(ids)} characters; allowed: 2 or more")
    start_s = time.perf_counter()
    B = streams_of(ids, streams)
    part = -(-targets // B)
    warmup = WARMUP if B > 1 else 0
    begin_B1 = part * np.arange(B)[:, None]
    nats = np.empty((B, part), np.float32) if per_char else None
    total = torch.zeros((), dtype=torch.float64, device=device)
    state = None
    windows = itertools.chain(_windows(-warmup, 0, _STEPS), _windows(0, part, steps or _score_steps(B, model)))
    with evaluating(model), torch.inference_mode(learn is None):
        for offset, length in windows:
            at_BT = begin_B1 + np.arange(offset, offset + length)
            # Ends: before the first stream there is nothing, behind the last one too; what is read there is not used.
            x_TB = torch.from_numpy(ids[at_BT.clip(0, targets - 1)].T.astype(np.int64)).to(device)
            if offset < 0:
                with torch.no_grad():
                    _, state = model.features(x_TB, state)
                if offset + length == 0:
                    state = map_state(_without_first_stream, state)
                continue
            logits, state = model(x_TB, state)  # [T, B, V]
            y_TB = torch.from_numpy(ids[at_BT.clip(0, targets - 1) + 1].T.astype(np.int64)).to(device)
            loss_TB = cross_entropy(logits, y_TB)
            loss_TB = loss_TB * torch.from_numpy((at_BT < targets).T.astype(np.float32)).to(device)
            total += loss_TB.detach().sum(dtype=torch.float64)
            if nats is not None:
                nats[:, offset : offset + length] = loss_TB.detach().T.cpu().numpy()
            if learn is not None:
                learn(loss_TB)
                state = map_state(torch.Tensor.detach, state)
    flat = nats.reshape(-1)[:targets] if nats is not None else None
    return Evaluation(total.item(), targets, time.perf_counter() - start_s, flat)


def streams_of(ids: npt.NDArray[np.integer[Any]], streams: int) -> int:
    """The streams that `evaluate` cuts a text into: fewer than asked for where they would be short, at least one."""
    return max(1, min(streams, (len(ids) - 1) // (4 * WARMUP)))


@contextlib.contextmanager
def evaluating(model: CharLM) -> Iterator[None]:
    """The model in evaluation mode, for a while."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _windows(start: int, end: int, steps: int) -> Iterator[tuple[int, int]]:
    """(offset, steps) of the windows that cover start … end."""
    return ((offset, min(steps, end - offset)) for offset in range(start, end, steps))


def _score_steps(streams: int, model: CharLM) -> int:
    return max(1, min(_STEPS, _LOGITS // (streams * model.vocabulary_size)))


def _without_first_stream(state: torch.Tensor) -> torch.Tensor:
    """The state [L, B, H] with that of stream 0, which begins the text, set to zero."""
    state = state.clone()
    state[:, 0] = 0
    return state
