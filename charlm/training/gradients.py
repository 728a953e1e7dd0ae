"""Gradients of several processes become those of one."""

import torch
from torch import Tensor

from charlm.model import WindowLoss
from charlm.system.world import World


class GradientMean:
    """Averages gradients and scores over the processes of a run, which have equal parts of the batch.

    They travel in one buffer, after the backward pass: a recurrence's weight gradients are complete only at its end, so
    there is nothing to overlap them with.
    """

    def __init__(self, parameters: list[Tensor], world: World) -> None:
        self._parameters = parameters
        self._world = world

    def __call__(self, loss: WindowLoss) -> WindowLoss:
        """The loss of the whole batch, detached; the gradients become views of the buffer."""
        parameters, size = self._parameters, self._world.size
        scores = loss.objective.detach(), loss.cross_entropy
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([tensor.reshape(-1) for tensor in (*gradients, *scores)])
        self._world.sum_(flat)
        if size > 1:
            flat /= size
        *gradients, objective, cross_entropy = flat.split([*(p.numel() for p in parameters), 1, 1])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.view_as(parameter)
        return loss._replace(objective=objective[0], cross_entropy=cross_entropy[0])
