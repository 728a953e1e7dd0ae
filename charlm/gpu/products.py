"""Matrix products on a GPU: of bfloat16 or float32 operands, with sums and results in float32."""

import torch
from torch import Tensor

from charlm.native import linear as native
from charlm.native.call import without_autocast


def product(a_MK: Tensor, b_KN: Tensor, *, bf16: bool, out: Tensor | None = None) -> Tensor:
    """a b, [M, N]; with `bf16` the operands are rounded to bfloat16, the result is not. No gradients.

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


def matmul(
    a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None = None, *, bf16: bool = False, out: Tensor | None = None
) -> Tensor:
    """a b + bias, [M, N], under any autocast; written to `out` if given. No gradients."""
    with without_autocast(a_MK.device):
        c_MN = product(a_MK, b_KN, bf16=bf16, out=out)
        return c_MN if bias_N is None else c_MN.add_(bias_N)


def linear(x: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """x wᵀ + bias over the last dimension of x, as `F.linear`, on any device.

    Under autocast to bfloat16 the operands are rounded; sums and result are float32.
    """
    if x.device.type == "cpu":
        return native.linear(x, w_NK, bias_N)
    return device_linear(x, w_NK, bias_N)


def device_linear(x: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """`linear` by `matmul`."""
    return native.linear_by(matmul, x, w_NK, bias_N)
