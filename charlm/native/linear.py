"""Matrix products over whole windows: on the CPU in the kernels' own micro-kernel, elsewhere by PyTorch."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from charlm.native.autograd import KernelFunction, applied, autocasts_to_bf16, first_derivative, without_autocast
from charlm.native.kernels import PRODUCT
from charlm.native.structs import check_tensor

_CPU = torch.device("cpu")


def matmul(a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None = None, *, bf16: bool = False) -> Tensor:
    """a b + bias, [M, N], for float32 matrices of any strides. No gradients. ValueError for other types and shapes."""
    (M, K), N = a_MK.shape, b_KN.shape[1]
    check_tensor("the left factor of a product", a_MK, (M, K), torch.float32, _CPU)
    check_tensor("the right factor of a product", b_KN, (K, N), torch.float32, _CPU)
    if bias_N is not None:
        check_tensor("the bias of a product", bias_N, (N,), torch.float32, _CPU)
    c_MN = a_MK.new_empty(M, N)
    strides = dict(zip(("a_row", "a_column", "b_row", "b_column"), (*a_MK.stride(), *b_KN.stride()), strict=True))
    pointers = {"a": a_MK.data_ptr(), "b": b_KN.data_ptr()}
    bias = None if bias_N is None else bias_N.contiguous()
    PRODUCT("product", **{"M": M, "N": N, "K": K}, **strides, **pointers, bf16=bf16, bias=bias, c=c_MN)
    return c_MN


def torch_product(a_MK: Tensor, b_KN: Tensor, *, bf16: bool, out: Tensor | None = None) -> Tensor:
    """a b, [M, N], by PyTorch; with `bf16` the operands are rounded to bfloat16, the result is not. No gradients.

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


def torch_matmul(a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None = None, *, bf16: bool = False) -> Tensor:
    """`matmul` by PyTorch on any device, in any dtype, under any autocast."""
    with without_autocast(a_MK.device):
        c_MN = torch_product(a_MK, b_KN, bf16=bf16)
        return c_MN if bias_N is None else c_MN.add_(bias_N)


def linear(x: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """x wᵀ + bias over the last dimension of x, as `F.linear`; on the CPU by a faster kernel, if it compiles.

    Under autocast to bfloat16 the operands are rounded; sums and result are float32.
    """
    operands = [x, w_NK] if bias_N is None else [x, w_NK, bias_N]
    if x.device.type != "cpu":
        return linear_by(torch_matmul, x, w_NK, bias_N)
    if not x.shape[-1] or not all(map(_is_for_kernels, operands)) or not PRODUCT.works():
        return F.linear(x, w_NK, bias_N)
    return linear_by(matmul, x, w_NK, bias_N)


def linear_by(multiply: Callable[..., Tensor], x: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """`linear` by a function with the arguments of `matmul`."""
    y_MN = applied(_Linear, x.reshape(-1, x.shape[-1]), w_NK, bias_N, autocasts_to_bf16(x.device), multiply)
    return y_MN.view(*x.shape[:-1], len(w_NK))


def _is_for_kernels(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.dtype == torch.float32 and tensor.layout == torch.strided and not tensor.is_neg()


class _Linear(KernelFunction):
    @staticmethod
    def forward(
        ctx: Any, x_MK: Tensor, w_NK: Tensor, bias_N: Tensor | None, bf16: bool, multiply: Callable[..., Tensor]
    ) -> Tensor:
        ctx.save_for_backward(x_MK, w_NK)
        ctx.bf16, ctx.multiply = bf16, multiply
        return multiply(x_MK, w_NK.t(), bias_N, bf16=bf16)

    @staticmethod
    @first_derivative
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy_MN: Tensor
    ) -> tuple[Tensor | None, ...]:
        x_MK, w_NK = ctx.saved_tensors
        dx, dw, dbias, *_ = ctx.needs_input_grad
        return (
            ctx.multiply(dy_MN, w_NK, bf16=ctx.bf16) if dx else None,
            ctx.multiply(dy_MN.t(), x_MK, bf16=ctx.bf16) if dw else None,
            dy_MN.sum(0) if dbias else None,
            None,
            None,
        )
