"""Masks for dropout."""

import torch
from torch import Tensor

from charlm.layers.autograd import refuse_symbols
from charlm.native.random import random_mask
from charlm.system.process_group import WHOLE_BATCH, Shard


def dropout_mask(
    shape: tuple[int, ...], p: float, like: Tensor, *, shard: Shard = WHOLE_BATCH, streams: int = 1
) -> Tensor:
    """A mask of 0 with probability p, else 1/(1−p): multiplying by it leaves the expected value unchanged.

    Drawn from torch's global generator, in the dtype and on the device of `like`. On the CPU, p is rounded to a
    multiple of 2⁻¹⁶: drawing sixteen random bits per element is much faster than torch's own draws.

    shard: the mask is this shard, along the dimension `streams`, of the mask of a whole batch: the processes of a run
    have the masks of a single one.
    """
    if like.device.type == "cpu":
        refuse_symbols()
        return random_mask(shape, max(1, round((1 - p) * 2**16)), shard, streams).to(like.dtype)
    whole = (*shape[:streams], shape[streams] * shard.count, *shape[streams + 1 :])
    return shard.of(torch.empty(whole, dtype=like.dtype, device=like.device).bernoulli_(1 - p).div_(1 - p), streams)
