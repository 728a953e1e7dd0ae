"""Cross-entropy of logits."""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from charlm.cells.lookup import check_ids
from charlm.cells.native.call import Kernel

LOSS = Kernel(Path(__file__).with_name("loss.cpp"))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats [...] of targets [...] under logits [..., V]; float32, one pass on the CPU where kernels can be made.

    ValueError for targets that the logits do not have.
    """
    logits = logits.float()
    if logits.device.type != "cpu" or not LOSS.works():
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none").view_as(targets)
    check_ids(targets, logits.shape[-1])
    nats = _CrossEntropy.apply(logits.flatten(0, -2).contiguous(), targets.flatten(), torch.is_grad_enabled())
    return nats.view_as(targets)  # type: ignore[union-attr]


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, with_backward: bool) -> Tensor:
        (N, V), nats_N = logits_NV.shape, logits_NV.new_empty(len(logits_NV))
        d_logits = torch.empty_like(logits_NV) if with_backward else None
        LOSS("cross_entropy", N=N, V=V, logits=logits_NV, targets=targets_N, nats=nats_N, d_logits=d_logits)
        ctx.save_for_backward(d_logits)
        return nats_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_nats_N: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (d_logits_NV,) = ctx.saved_tensors
        return d_logits_NV * d_nats_N.unsqueeze(-1), None, None
