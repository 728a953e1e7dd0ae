"""Cross-entropy of logits, with its gradient."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from charlm.layers.autograd import KernelFunction, first_derivative, refuse_symbols
from charlm.native import operators
from charlm.native.kernels import LOSS
from charlm.native.structs import check_tensor


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats [...] of targets [...] under logits [..., V], in float32. On the CPU by a one-pass kernel, if it compiles.

    ValueError for targets of another shape, type or device and, on the CPU, for targets outside 0 … V − 1.
    """
    check_tensor("targets", targets, logits.shape[:-1], torch.int64, logits.device)
    logits_NV, targets_N = logits.float().reshape(-1, logits.shape[-1]), targets.reshape(-1)
    if logits.device.type == "cpu":
        check_ids("targets", targets, logits.shape[-1])
    if logits.device.type == "cpu" and LOSS.works():
        refuse_symbols()
        nats_N: Any = _CrossEntropy.apply(logits_NV.contiguous(), targets_N.contiguous(), torch.is_grad_enabled())
    else:
        nats_N = F.cross_entropy(logits_NV, targets_N, reduction="none")
    return nats_N.view(targets.shape)


class _CrossEntropy(KernelFunction):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, with_backward: bool) -> Tensor:
        nats_N, d_logits_NV = operators.cross_entropy(logits_NV, targets_N, with_backward=with_backward)
        ctx.save_for_backward(d_logits_NV)
        return nats_N

    @staticmethod
    @first_derivative
    def backward(ctx: Any, d_nats_N: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (d_logits_NV,) = ctx.saved_tensors
        return d_logits_NV * d_nats_N.unsqueeze(-1), None, None


def check_ids(name: str, ids: Tensor, V: int) -> None:
    """ValueError unless all ids are from 0 to V − 1."""
    if ids.numel():
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= V:
            raise ValueError(f"{name}: found {low} to {high}; allowed: 0 to {V - 1}")
