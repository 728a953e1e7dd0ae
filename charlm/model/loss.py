"""The training loss of one window: cross-entropy and penalties."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from charlm.layers import RecurrentState, cross_entropy
from charlm.model.members import Network
from charlm.model.network import CharLM, map_state


class WindowLoss(NamedTuple):
    """The loss of one window of B streams and T steps."""

    objective: Tensor
    """Cross-entropy plus penalties; call `backward` on this."""
    cross_entropy: Tensor
    """In nats, summed over steps, averaged over streams; detached."""
    state: RecurrentState
    """The last state, detached."""


class _MeanSquare(torch.autograd.Function):
    """The mean of the squares. Its backward pass reads the values once; composed of operators, three times."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return torch.linalg.vector_norm(values).square() / values.numel()

    @staticmethod
    def backward(ctx: Any, d_mean: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (values,) = ctx.saved_tensors
        return values * (2 * d_mean / values.numel())


def mean_square(values: Tensor) -> Tensor:
    """The mean of the squares."""
    mean: Tensor = _MeanSquare.apply(values)  # type: ignore[assignment]
    return mean


def window_loss(
    model: Network,
    x_TB: Tensor,
    y_TB: Tensor,
    state: RecurrentState | None,
    *,
    activation_penalty: float = 0.0,
    change_penalty: float = 0.0,
) -> WindowLoss:
    """Run one window and score its targets `y_TB`.

    The penalties are activation regularization and temporal activation regularization (Merity et al. 2017,
    arXiv:1708.01009). They are means over units, streams and steps, multiplied by T to match the cross-entropy,
    which is a sum over steps.

    Each member learns as if alone: the objective is the sum over members, the cross-entropy the mean of theirs.
    """
    losses = [
        _loss_of_member(member, x_TB, y_TB, own, activation_penalty, change_penalty)
        for member, own in zip(model.members, model.split_state(state), strict=True)
    ]
    if len(losses) == 1:
        return losses[0]
    objectives, entropies, states = zip(*losses, strict=True)
    return WindowLoss(torch.stack(objectives).sum(), torch.stack(entropies).mean(), model.join_states(states))


def _loss_of_member(
    model: CharLM,
    x_TB: Tensor,
    y_TB: Tensor,
    state: RecurrentState | None,
    activation_penalty: float,
    change_penalty: float,
) -> WindowLoss:
    outputs, last_state = model.outputs(x_TB, state)
    features = model.drop_outputs(outputs)
    losses_TB = cross_entropy(model.logits(features), y_TB)
    total = losses_TB.sum() / x_TB.shape[1]
    objective = total
    if activation_penalty:
        objective = objective + len(losses_TB) * activation_penalty * mean_square(features)
    if change_penalty and len(outputs) > 1:
        objective = objective + len(losses_TB) * change_penalty * mean_square(outputs.diff(dim=0))
    return WindowLoss(objective, total.detach(), map_state(Tensor.detach, last_state))
