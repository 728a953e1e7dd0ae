"""Random masks for dropout."""

import math
from pathlib import Path

import torch
from torch import Tensor

from charlm.native.call import Kernel

RANDOM = Kernel(Path(__file__).with_name("random.cpp"))


def random_mask(shape: tuple[int, ...], kept: int) -> Tensor:
    """A float32 tensor on the CPU: 65536 / kept with probability kept / 65536, else 0; 1 ≤ kept ≤ 65536.

    The seed comes from torch's global generator. Without a compiler the probabilities are the same,
    but the draws differ.
    """
    size = math.prod(shape)
    if RANDOM.works():
        mask = torch.empty(shape)
        seed = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))
        RANDOM("random_mask", size=size, seed=seed, kept=kept, mask=mask)
        return mask
    draws = torch.empty((size + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:size]
    # int16 draws start at −2¹⁵. Compare with ≤ kept − 2¹⁵ − 1, because < kept − 2¹⁵ can exceed an int16.
    return (draws <= kept - 2**15 - 1).to(torch.float32).mul_(2**16 / kept).view(shape)
