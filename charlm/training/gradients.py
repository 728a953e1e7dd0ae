"""Gradients of several processes become those of one."""

import torch
from torch import Tensor

from charlm.model import WindowLoss
from charlm.system.process_group import ProcessGroup


class Backward:
    """The backward pass of an update; leaves the gradients of the whole batch, its mean over all processes' parts.

    Gradients and scores travel in one buffer after the pass: a recurrence's weight gradients are complete only at its
    end, so there is nothing to overlap them with.
    """

    def __init__(self, parameters: list[Tensor], group: ProcessGroup) -> None:
        self._parameters = parameters
        self._group = group

    def __call__(self, loss: WindowLoss) -> WindowLoss:
        """The loss of the whole batch, detached."""
        size = self._group.size
        (loss.objective / size if size > 1 else loss.objective).backward()
        scores = loss.objective.detach() / size, loss.cross_entropy / size
        if self._group.is_distributed:
            scores = self.add_up(*scores)
        return loss._replace(objective=scores[0], cross_entropy=scores[1])

    def add_up(self, *scores: Tensor) -> tuple[Tensor, ...]:
        """The sums of 0-d scores over all processes, and of gradients, which become views of the buffer."""
        parameters = self._parameters
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([tensor.reshape(-1) for tensor in (*gradients, *scores)])
        self._group.all_reduce_(flat)
        parts = flat.split([tensor.numel() for tensor in (*parameters, *scores)])
        for parameter, gradient in zip(parameters, parts, strict=False):
            parameter.grad = gradient.view_as(parameter)
        return tuple(part[0] for part in parts[len(parameters) :])
