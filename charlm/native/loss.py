"""Cross-entropy of logits and its gradient in one pass (loss.cpp)."""

import torch
from torch import Tensor

from charlm.native.kernels import LOSS


def cross_entropy(logits_NV: Tensor, targets_N: Tensor, *, with_backward: bool) -> tuple[Tensor, Tensor | None]:
    """Nats [N] of targets from 0 to V − 1, and `with_backward` the gradient of their sum, [N, V]. No gradients."""
    (N, V), nats_N = logits_NV.shape, logits_NV.new_empty(len(logits_NV))
    d_logits_NV = torch.empty_like(logits_NV) if with_backward else None
    LOSS("cross_entropy", N=N, V=V, logits=logits_NV, targets=targets_N, nats=nats_N, d_logits=d_logits_NV)
    return nats_N, d_logits_NV
