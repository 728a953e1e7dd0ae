"""Operators on whole tensors: each calls the C++ file that its docstring names. They know no gradients."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from charlm.native.kernels import LOOKUP, LOSS, PRODUCT, RANDOM
from charlm.native.loading import call, works
from charlm.native.structs import address
from charlm.system.process_group import WHOLE_BATCH, Shard

_CPU = torch.device("cpu")


def check_tensor(name: str, tensor: Any, shape: Sequence[int] | None, dtype: torch.dtype, device: torch.device) -> None:
    """TypeError for no tensor, ValueError unless it is dense, of this shape (None: any) and type, on this device."""
    if not isinstance(tensor, Tensor):
        allowed = "a tensor" if shape is None else f"a tensor {list(shape)}"
        raise TypeError(f"{name}: found a {type(tensor).__name__}; allowed: {allowed}")
    if shape is None:
        shape = tensor.shape
    is_dense = tensor.layout == torch.strided
    if not is_dense or tensor.shape != tuple(shape) or tensor.dtype != dtype or tensor.device != device:
        layout = "" if is_dense else f" as {tensor.layout}"
        raise ValueError(
            f"{name}: found {tensor.dtype} {list(tensor.shape)} on {tensor.device}{layout}; "
            f"allowed: {dtype} {list(shape)} on {device}"
        )


def matmul(a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None = None, *, bf16: bool = False) -> Tensor:
    """a b + bias, [M, N], for float32 matrices of any strides (product.cpp). ValueError for other types and shapes.

    With `bf16` the operands are rounded to bfloat16; sums and the result are float32.
    """
    (M, K), N = a_MK.shape, b_KN.shape[1]
    check_tensor("the left factor of a product", a_MK, (M, K), torch.float32, _CPU)
    check_tensor("the right factor of a product", b_KN, (K, N), torch.float32, _CPU)
    if bias_N is not None:
        check_tensor("the bias of a product", bias_N, (N,), torch.float32, _CPU)
        bias_N = bias_N.contiguous()
    c_MN = a_MK.new_empty(M, N)
    a = {"a": address("a product", a_MK), "a_row": a_MK.stride(0), "a_column": a_MK.stride(1)}
    b = {"b": address("a product", b_KN), "b_row": b_KN.stride(0), "b_column": b_KN.stride(1)}
    call(PRODUCT, "product", M=M, N=N, K=K, **a, **b, bf16=bf16, bias=bias_N, c=c_MN)
    return c_MN


def column_sums(a_MK: Tensor) -> Tensor:
    """The sums over the rows of a matrix of float32, [K] (product.cpp)."""
    (M, K), a_MK = a_MK.shape, a_MK.contiguous()
    sums_K = a_MK.new_empty(K)
    call(PRODUCT, "column_sums", M=M, K=K, a=a_MK, a_row=K, c=sums_K)
    return sums_K


def table_gradient(d_rows_TBN: Tensor, ids_TB: Tensor, V: int) -> Tensor:
    """The gradient of a table: for each of its V rows the sum of those of its lookups, [V, N] (lookup.cpp)."""
    columns = d_rows_TBN.shape[-1]
    d_table_VN = d_rows_TBN.new_empty(V, columns)
    sizes = {"N": ids_TB.numel(), "V": V, "columns": columns}
    call(LOOKUP, "lookup_gradient", **sizes, ids=ids_TB, d_rows=d_rows_TBN, d_table=d_table_VN)
    return d_table_VN


def cross_entropy(
    logits_NV: Tensor, targets_N: Tensor, *, with_backward: bool, scale: float = 1.0
) -> tuple[Tensor, Tensor | None]:
    """Nats [N] of targets from 0 to V − 1, and `with_backward` the gradient of scale · their sum, [N, V] (loss.cpp)."""
    (N, V), nats_N = logits_NV.shape, logits_NV.new_empty(len(logits_NV))
    d_logits_NV = torch.empty_like(logits_NV) if with_backward else None
    tensors = {"logits": logits_NV, "targets": targets_N, "nats": nats_N, "d_logits": d_logits_NV}
    call(LOSS, "cross_entropy", N=N, V=V, scale=scale, **tensors)
    return nats_N, d_logits_NV


def random_mask(shape: tuple[int, ...], keep: int, shard: Shard, dim: int) -> Tensor:
    """A mask for dropout (random.cpp): 65536 / keep with probability keep / 65536, else 0; 1 ≤ keep ≤ 65536.

    Float32, on the CPU. It is this shard, along `dim`, of a mask for a whole batch. The seed comes from torch's global
    generator. The draws are the same with and without a compiler.
    """
    seed = torch.empty((), dtype=torch.int64).random_(-(2**63), None)
    dim = 0 if shard == WHOLE_BATCH else dim
    rows, size = math.prod(shape[:dim]), math.prod(shape[dim:])
    if works(RANDOM):
        mask = torch.empty(shape)
        where = {"first": shard.index * size, "stride": shard.count * size}
        call(RANDOM, "random_mask", rows=rows, size=size, **where, seed=seed, keep=keep, mask=mask)
        return mask
    # Element 4 n + i is decided by the i-th 16 bits of the n-th output, as in random.cpp.
    draws = _split_mix_64(int(seed), (rows * shard.count * size + 3) // 4).astype("<u8").view("<u2")
    of_shard = draws[: rows * shard.count * size].reshape(rows, shard.count, size)[:, shard.index]
    return torch.from_numpy(np.where(of_shard < keep, np.float32(65536 / keep), np.float32(0))).view(shape)


def _split_mix_64(seed: int, count: int) -> np.ndarray:
    """The first `count` outputs of SplitMix64 (Steele, Lea & Flood 2014), uint64; see random.cpp."""
    z = np.uint64(seed % 2**64) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
