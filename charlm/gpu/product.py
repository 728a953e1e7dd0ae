"""Matrix products by PyTorch, on any device and in any dtype."""

import torch
from torch import Tensor


def torch_product(a_MK: Tensor, b_KN: Tensor, *, bf16: bool, out: Tensor | None = None) -> Tensor:
    """a b, [M, N], without gradients and autocast. With `bf16` the operands are rounded, not the result."""
    if not bf16:
        return torch.mm(a_MK, b_KN, out=out)
    a_MK, b_KN = a_MK.bfloat16(), b_KN.bfloat16()
    if a_MK.device.type == "cpu":  # has no such operator; for tests
        return torch.mm(a_MK.float(), b_KN.float(), out=out)
    if out is None:
        return torch.mm(a_MK, b_KN, out_dtype=torch.float32)
    return torch.mm(a_MK, b_KN, out_dtype=torch.float32, out=out)
