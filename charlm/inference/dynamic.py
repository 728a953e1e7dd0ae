"""Dynamic evaluation (Krause et al. 2018, arXiv:1709.07432): the model goes on learning from the text it has scored.

Each window of the text is scored with the weights θ as they are; then they take a step on it:

    θ ← θ − η g / (RMS + ε) + λ (θ₀ − θ) ⊙ RMS / mean(RMS)

g: gradient of the window's cross-entropy; θ₀: the trained weights; RMS = √(mean of g²) of each weight, over windows of
the training text. So weights that training leaves to fluctuate move far, and are drawn back the more.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from charlm.cells import RecurrentState, cross_entropy
from charlm.errors import DivergenceError
from charlm.inference.evaluation import WARMUP, Evaluation, evaluate, evaluating, streams_of
from charlm.model import CharLM, map_state

Ids = npt.NDArray[np.integer[Any]]

_WINDOWS = 512
"""Windows of the training text that RMS is taken over; fewer of several streams, each of which averages already."""
_FEWEST_WINDOWS = 8
"""Fewer than _WINDOWS where they are so long that they fill the text, but so many at least."""
_READ_TOGETHER = 64
"""Streams that are led up to such windows side by side."""
_EPSILON = 0.1
"""ε as a share of mean(RMS): so η means the same whatever the scale of the loss."""


@dataclass(frozen=True)
class Adaptation:
    """How fast the model learns while it is evaluated."""

    lr: float = 0.0005
    """η, the usual size of the step that a weight takes on a window."""
    decay: float = 0.0005
    """λ, what a window takes back of a weight's distance from the trained one, on average over the weights."""
    steps: int = 50
    """Characters of a window, at most a stream's: the fewer, the sooner they are learned from, the longer it takes."""


def evaluate_dynamically(
    model: CharLM,
    ids: Ids,
    train_ids: Ids,
    device: torch.device,
    adaptation: Adaptation,
    *,
    streams: int = 1,
    per_char: bool = False,
) -> Evaluation:
    """`evaluate` with weights that follow the text [N]; afterwards, or after an error, they are as they were.

    Nothing is learned from before it is scored. With one stream a score depends on what stands before it in the text
    alone; of several, each also profits from what the others have read so far.

    train_ids: the training text, which the gradient's usual size is measured on. DataError where `ids` leaves nothing
    to score; DivergenceError where the learning rate is so high that the loss is no longer finite.
    """
    parameters = list(model.parameters())
    trained = [parameter.detach().clone() for parameter in parameters]
    B = streams_of(ids, streams)
    steps = max(1, min(adaptation.steps, -(-(len(ids) - 1) // B)))
    sizes = gradient_rms(model, train_ids, device, steps=steps, streams=B)
    mean = torch.cat([rms.flatten() for rms in sizes]).mean().clamp(min=1e-20)
    rates = [adaptation.lr / (rms + _EPSILON * mean) for rms in sizes]
    # More than 1 would carry weights beyond the trained ones.
    pulls = [(adaptation.decay * rms / mean).clamp(max=1) for rms in sizes]

    def learn(loss_TB: Tensor) -> None:
        objective = loss_TB.sum() / B
        if not torch.isfinite(objective):
            raise DivergenceError(
                f"dynamic evaluation: found a loss of {objective:.6g} nats; allowed: finite numbers; lower --dynamic-lr"
            )
        gradients = torch.autograd.grad(objective, parameters)
        with torch.no_grad():
            for each in zip(parameters, gradients, rates, trained, pulls, strict=True):
                parameter, gradient, rate, origin, pull = each
                parameter.lerp_(origin, pull).addcmul_(gradient, rate, value=-1)

    try:
        return evaluate(model, ids, device, streams=B, steps=steps, per_char=per_char, learn=learn)
    finally:
        with torch.no_grad():
            for parameter, origin in zip(parameters, trained, strict=True):
                parameter.copy_(origin)


def gradient_rms(model: CharLM, ids: Ids, device: torch.device, *, steps: int, streams: int) -> list[Tensor]:
    """√(mean of g²) of every parameter: g over windows [steps, streams] that lie evenly in `ids`.

    Each is read after the WARMUP characters before it, with the dropout off. In a text shorter than a window, the
    windows are as long as it.
    """
    T = min(steps, len(ids) - 1)
    warmup = min(WARMUP, len(ids) - 1 - T)
    windows = max(1, min(_WINDOWS, max(_FEWEST_WINDOWS, len(ids) // T)) // min(streams, 8))
    # Window k reads the places k, k + windows, …: far from one another, as the streams of a text are.
    starts = np.linspace(0, len(ids) - 1 - T - warmup, streams * windows).astype(np.int64)
    starts = starts.reshape(streams, windows).T.reshape(-1)
    parameters = list(model.parameters())
    squares = [torch.zeros_like(parameter) for parameter in parameters]
    together = max(1, _READ_TOGETHER // streams) * streams
    with evaluating(model):
        for first in range(0, len(starts), together):
            at_TB = np.arange(warmup + T + 1)[:, None] + starts[first : first + together]
            ids_TB = torch.from_numpy(ids[at_TB].astype(np.int64)).to(device)
            state = model.layers.zero_state(ids_TB.shape[1])
            if warmup:
                with torch.no_grad():
                    _, state = model.features(ids_TB[:warmup])
            for b in range(0, ids_TB.shape[1], streams):
                window_TB = ids_TB[warmup:, b : b + streams].contiguous()
                logits, _ = model(window_TB[:-1], _streams_from(b, streams, state))
                loss = cross_entropy(logits, window_TB[1:]).sum() / streams
                for square, gradient in zip(squares, torch.autograd.grad(loss, parameters), strict=True):
                    square.addcmul_(gradient, gradient)
    return [square.div_(windows).sqrt_() for square in squares]


def _streams_from(first: int, count: int, state: RecurrentState) -> RecurrentState:
    return map_state(lambda part: part[:, first : first + count].contiguous(), state)
