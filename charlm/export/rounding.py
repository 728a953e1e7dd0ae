"""Weights in fewer bits, and what that costs on validation text."""

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from charlm.data.encoded import EncodedText
from charlm.errors import CharlmError, DataError
from charlm.export import Weights
from charlm.inference.evaluation import Evaluation, evaluate
from charlm.inference.trained import TrainedModel
from charlm.model import overflow
from charlm.system.arrays import Array, Floats32

LARGEST = 127
MOST_LOSS = 0.005
"""The share of its nats that a model may lose."""
_LEAST_NATS = 0.001
"""A loss below counts as this one; a text of one character has 0."""
_LEAST_SCORED, _MOST_SCORED = 10_000, 100_000
"""Characters of validation text that are scored, if there are so many."""
_SCORED_WORK = 10**11
"""Characters times parameters that are scored: a few seconds on two cores."""
T = TypeVar("T")


def stored_matrix(weight: Tensor, weights: Weights) -> tuple[Array, Floats32 | None]:
    """A matrix [rows, columns] as it is stored, and for int8 a scale for each row, whose largest weight is ±127.

    `weight`, on the CPU in float32, gets the rounded values.
    """
    values = weight.detach().numpy()
    if weights == "float32":
        return values, None
    largest = np.abs(values).max(axis=1)
    scales = np.where(largest > 0, largest / LARGEST, 1).astype(np.float32)
    whole = np.rint(values / scales[:, None]).clip(-LARGEST, LARGEST).astype(np.int8)
    weight.detach().copy_(torch.from_numpy(whole * scales[:, None]))
    return whole, scales


def at_a_cost(trained: TrainedModel, weights: Weights, pack: Callable[[], T]) -> tuple[T, Evaluation | None, str]:
    """The result of `pack`, which rounds the model's weights; the new score, None if the text is gone; both scores.

    CharlmError if the loss rises by more than MOST_LOSS.
    """
    length = min(max(_SCORED_WORK // trained.parameters, _LEAST_SCORED), _MOST_SCORED)
    try:
        text = trained.split("valid").first(length)
    except DataError as error:
        return pack(), None, f"{weights}; nats not compared: {error}"
    before = _score(trained, text)
    content = pack()
    after = _score(trained, text)
    nats, rounded = before.nats_per_char, after.nats_per_char
    loss = (rounded - nats) / max(nats, _LEAST_NATS)
    if loss > MOST_LOSS:
        raise CharlmError(
            f"export: {weights} weights raise the loss from {nats:.4f} to {rounded:.4f} nats per character, by "
            f"{loss:.2%}; allowed: {MOST_LOSS:.1%}; use --weights float32"
        )
    change = f"{nats:.4f} nats per character before, {rounded:.4f} after ({loss:+.2%})"
    return content, after, f"{weights}: {change}, on {before.of.chars:,} characters ({before.of.label})"


def _score(trained: TrainedModel, text: EncodedText) -> Evaluation:
    score = evaluate(trained.network, text)
    if not math.isfinite(score.nats_sum):
        raise overflow()
    return score
