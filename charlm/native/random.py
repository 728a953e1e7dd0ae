"""Random masks for dropout (random.cpp)."""

import math

import numpy as np
import torch
from torch import Tensor

from charlm.native.kernels import RANDOM
from charlm.system.process_group import WHOLE_BATCH, Shard


def random_mask(shape: tuple[int, ...], keep: int, shard: Shard = WHOLE_BATCH, dim: int = 0) -> Tensor:
    """A float32 tensor on the CPU: 65536 / keep with probability keep / 65536, else 0; 1 ≤ keep ≤ 65536.

    It is this shard, along `dim`, of a mask for a whole batch. The seed comes from torch's global generator. The draws
    are the same with and without a compiler.
    """
    seed = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))
    dim = 0 if shard == WHOLE_BATCH else dim
    rows, size = math.prod(shape[:dim]), math.prod(shape[dim:])
    if RANDOM.works():
        mask = torch.empty(shape)
        where = {"first": shard.index * size, "stride": shard.count * size}
        RANDOM("random_mask", rows=rows, size=size, **where, seed=seed, keep=keep, mask=mask)
        return mask
    # Element 4 n + i is decided by the i-th 16 bits of the n-th output, as in random.cpp.
    draws = _split_mix_64(seed, (rows * shard.count * size + 3) // 4).astype("<u8").view("<u2")
    of_shard = draws[: rows * shard.count * size].reshape(rows, shard.count, size)[:, shard.index]
    return torch.from_numpy(np.where(of_shard < keep, np.float32(65536 / keep), np.float32(0))).view(shape)


def _split_mix_64(seed: int, count: int) -> np.ndarray:
    """The first `count` outputs of SplitMix64 (Steele, Lea & Flood 2014), uint64; see random.cpp."""
    z = np.uint64(seed % 2**64) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
