"""Matrix products in the kernels' own micro-kernel (product.cpp)."""

import torch
from torch import Tensor

from charlm.native.kernels import PRODUCT
from charlm.native.structs import check_tensor

_CPU = torch.device("cpu")


def matmul(a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None = None, *, bf16: bool = False) -> Tensor:
    """a b + bias, [M, N], for float32 matrices of any strides. No gradients. ValueError for other types and shapes.

    With `bf16` the operands are rounded to bfloat16; sums and the result are float32.
    """
    (M, K), N = a_MK.shape, b_KN.shape[1]
    check_tensor("the left factor of a product", a_MK, (M, K), torch.float32, _CPU)
    check_tensor("the right factor of a product", b_KN, (K, N), torch.float32, _CPU)
    if bias_N is not None:
        check_tensor("the bias of a product", bias_N, (N,), torch.float32, _CPU)
        bias_N = bias_N.contiguous()
    c_MN = a_MK.new_empty(M, N)
    a = {"a": a_MK.data_ptr(), "a_row": a_MK.stride(0), "a_column": a_MK.stride(1)}
    b = {"b": b_KN.data_ptr(), "b_row": b_KN.stride(0), "b_column": b_KN.stride(1)}
    PRODUCT("product", M=M, N=N, K=K, **a, **b, bf16=bf16, bias=bias_N, c=c_MN)
    return c_MN
