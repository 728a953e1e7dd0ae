"""Matrix products on a GPU: of bfloat16 or float32 operands, with sums and results in float32."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from charlm.native import linear as native
from charlm.native.call import first_derivative
from charlm.native.lookup import Lookup


def product(a_MK: Tensor, b_KN: Tensor, *, bf16: bool, out: Tensor | None = None) -> Tensor:
    """a b, [M, N]; with `bf16` of operands rounded to bfloat16. The result is not rounded. No gradients.

    Call it under `without_autocast`.
    """
    if not bf16:
        return torch.mm(a_MK, b_KN, out=out)
    a_MK, b_KN = a_MK.bfloat16(), b_KN.bfloat16()
    if a_MK.device.type == "cpu":  # has no such operator; for tests
        return torch.mm(a_MK.float(), b_KN.float(), out=out)
    if out is None:
        return torch.mm(a_MK, b_KN, out_dtype=torch.float32)
    return torch.mm(a_MK, b_KN, out_dtype=torch.float32, out=out)


def autocasts_to_bf16(device: torch.device) -> bool:
    """Whether autocast asks for products in bfloat16 on this device."""
    name = _autocast_name(device)
    return torch.is_autocast_enabled(name) and torch.get_autocast_dtype(name) == torch.bfloat16


def without_autocast(device: torch.device) -> torch.autocast:
    """A context for `product`, whose operands and results autocast would otherwise round as it likes."""
    return torch.autocast(_autocast_name(device), enabled=False)


def _autocast_name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else "cuda"


def linear(x: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """x wᵀ + bias over the last dimension of x, as `F.linear`, on any device.

    Under autocast to bfloat16 the operands are rounded; sums and result are float32.
    """
    if x.device.type == "cpu":
        return native.linear(x, w_NK, bias_N)
    return device_linear(x, w_NK, bias_N)


def device_linear(x: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """`linear` by `product`."""
    y_MN = _Linear.apply(x.reshape(-1, x.shape[-1]), w_NK, autocasts_to_bf16(x.device))
    y = y_MN.view(*x.shape[:-1], len(w_NK))  # type: ignore[union-attr]
    return y if bias_N is None else y + bias_N


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, w_NK: Tensor, bf16: bool) -> Tensor:
        ctx.save_for_backward(x_MK, w_NK)
        ctx.bf16 = bf16
        with without_autocast(x_MK.device):
            return product(x_MK, w_NK.t(), bf16=bf16)

    @staticmethod
    @first_derivative
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_MN: Tensor
    ) -> tuple[Tensor | None, ...]:
        x_MK, w_NK = ctx.saved_tensors
        dx, dw, _ = ctx.needs_input_grad
        with without_autocast(x_MK.device):
            return (
                product(dy_MN, w_NK, bf16=ctx.bf16) if dx else None,
                product(dy_MN.t(), x_MK, bf16=ctx.bf16) if dw else None,
                None,
            )


def project(x: Tensor | Lookup, w_GI: Tensor, bias_G: Tensor) -> Tensor:
    """Input products W x + bias of all steps, [T, B, G]; for a lookup, rows of the table's products."""
    if not isinstance(x, Lookup):
        return device_linear(x, w_GI, bias_G)
    if x.table_VI is None:
        return F.embedding(x.ids_TB, (bias_G + w_GI.t()).contiguous())
    if x.ids_TB.numel() < len(x.table_VI):
        return device_linear(F.embedding(x.ids_TB, x.table_VI), w_GI, bias_G)
    return F.embedding(x.ids_TB, device_linear(x.table_VI, w_GI, bias_G))
