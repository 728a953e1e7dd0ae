"""Dynamic evaluation (Krause et al. 2018, arXiv:1709.07432): the model keeps learning from the text it has scored.

Each window of the text is scored with the current weights θ, which then take a step on it:

    θ ← θ − η g / (RMS + ε) + λ (θ₀ − θ) ⊙ RMS / mean(RMS)

g: gradient of the window's cross-entropy. θ₀: the trained weights. RMS = √(mean of g²) of each weight, measured over
windows of the training text: weights with large gradients in training get small steps and a strong pull back to θ₀.
"""

import numpy as np
import torch
from torch import Tensor

from charlm.data.encoded import EncodedText
from charlm.data.vocabulary import Ids
from charlm.errors import DataError, DivergenceError
from charlm.inference.evaluation import WARMUP, Evaluation, score_windows
from charlm.inference.reader import START, Reader, evaluating
from charlm.model import Network
from charlm.system.number import LARGEST, in_range

_WINDOWS = 512
"""Windows of the training text over which RMS is measured."""
_FEWEST_WINDOWS = 8
"""Lower limit of that number when the windows are long enough to cover the text."""
_READ_TOGETHER = 64
"""How many such windows are warmed up at once."""
_EPSILON = 0.1
"""ε as a share of mean(RMS), so that η does not depend on the scale of the loss."""

LR, DECAY, STEPS = 0.0005, 0.0005, 50
"""What `evaluate_dynamically` takes unless it is told otherwise."""


def evaluate_dynamically(
    model: Network,
    text: EncodedText,
    train_ids: Ids,
    *,
    lr: float = LR,
    decay: float = DECAY,
    steps: int = STEPS,
    per_symbol: bool = False,
) -> Evaluation:
    """`evaluate` in one stream while the model learns from the text; afterwards the weights are restored.

    Every window is scored before the model learns from it, so a score depends only on the text before the character.

    train_ids: the training text, which gives RMS. lr: η, the typical change of a weight per window. decay: λ, the
    average share by which a weight moves back to its trained value per window. steps: characters per window; shorter
    windows adapt sooner and take longer.

    DataError for a text that is too short, or a model of records, which are independent; ValueError for a number out
    of range; DivergenceError if a high `lr` makes the loss infinite or nan.
    """
    lr, decay = in_range("lr", lr, 0.0, LARGEST), in_range("decay", decay, 0.0, LARGEST)
    steps = in_range("steps", steps, 1, LARGEST)
    if model.reads_records:
        raise DataError("dynamic evaluation: found a model of records; allowed: a model of running text")
    text.check_scorable("dynamic evaluation")
    steps = min(steps, len(text.ids) - 1)
    sizes = gradient_rms(model, train_ids, steps)
    parameters: list[Tensor] = list(model.parameters())
    trained = [parameter.detach().clone() for parameter in parameters]
    mean = torch.cat([rms.flatten() for rms in sizes]).mean().clamp(min=1e-20)
    rates = [lr / (rms + _EPSILON * mean) for rms in sizes]
    # A pull above 1 would overshoot the trained weights.
    pulls = [(decay * rms / mean).clamp(max=1) for rms in sizes]
    loss = torch.zeros((), device=model.device)  # of the latest window, or the first not finite

    def learn(nats_TB: Tensor) -> None:
        nonlocal loss
        objective = nats_TB.sum() / nats_TB.shape[1]
        loss = torch.where(loss.isfinite(), objective.detach(), loss)
        if loss.device.type == "cpu":  # Reading a number from a GPU would wait for it.
            _check_finite(loss)
        gradients = torch.autograd.grad(objective, parameters, materialize_grads=True)
        with torch.no_grad():
            torch._foreach_lerp_(parameters, trained, pulls)  # pyright: ignore[reportPrivateImportUsage]
            torch._foreach_addcmul_(parameters, gradients, rates, value=-1)  # pyright: ignore[reportPrivateImportUsage]

    try:
        with evaluating(model):
            score = score_windows(model, text, START, per_symbol=per_symbol, after=learn, steps=steps)
        _check_finite(loss)
        return score
    finally:
        with torch.no_grad():
            for parameter, origin in zip(parameters, trained, strict=True):
                parameter.copy_(origin)


def _check_finite(loss: Tensor) -> None:
    if not torch.isfinite(loss):
        raise DivergenceError(
            f"dynamic evaluation: found a loss of {loss:.6g} nats; allowed: finite numbers; lower the learning rate"
        )


def gradient_rms(model: Network, ids: Ids, steps: int) -> list[Tensor]:
    """√(mean of g²) of every parameter, over windows of so many steps, spread evenly over `ids`.

    Each window is read after the WARMUP characters before it, with dropout off. If the text is shorter than a window,
    the windows are as long as the text.
    """
    T = min(steps, len(ids) - 1)
    warmup = min(WARMUP, len(ids) - 1 - T)
    windows = min(_WINDOWS, max(_FEWEST_WINDOWS, len(ids) // T))
    starts = np.linspace(0, len(ids) - 1 - T - warmup, windows).astype(np.int64)
    parameters = list(model.parameters())
    squares = [torch.zeros_like(parameter) for parameter in parameters]
    with evaluating(model):
        for first in range(0, windows, _READ_TOGETHER):
            starts_B = starts[first : first + _READ_TOGETHER]
            before = Reader(model, ids, starts_B)
            if warmup:
                with torch.no_grad():
                    before.features(0, warmup)
            for b in range(len(starts_B)):
                own_state = tuple(layers[:, b : b + 1].contiguous() for layers in before.state)
                loss = Reader(model, ids, starts_B[b : b + 1], own_state).nats(warmup, T).sum()
                gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
                for square, gradient in zip(squares, gradients, strict=True):
                    square.addcmul_(gradient, gradient)
    return [square.div_(windows).sqrt_() for square in squares]
