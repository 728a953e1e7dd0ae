"""Matrix products by PyTorch, on any device and in any dtype."""

import torch
from torch import Tensor

from charlm.system.device import without_autocast


def matmul(a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None = None, *, bf16: bool = False) -> Tensor:
    """a b + bias, [M, N], under any autocast. No gradients. With `bf16` the operands are rounded, not the result."""
    with without_autocast(a_MK.device):
        c_MN = torch_product(a_MK, b_KN, bf16=bf16)
        return c_MN if bias_N is None else c_MN.add_(bias_N)


def torch_product(a_MK: Tensor, b_KN: Tensor, *, bf16: bool, out: Tensor | None = None) -> Tensor:
    """`matmul` without a bias, to be called under `without_autocast`."""
    if not bf16:
        return torch.mm(a_MK, b_KN, out=out)
    a_MK, b_KN = a_MK.bfloat16(), b_KN.bfloat16()
    if a_MK.device.type == "cpu":  # has no such operator; for tests
        return torch.mm(a_MK.float(), b_KN.float(), out=out)
    if out is None:
        return torch.mm(a_MK, b_KN, out_dtype=torch.float32)
    return torch.mm(a_MK, b_KN, out_dtype=torch.float32, out=out)
