"""Masks for dropout, and zoneout."""

import torch
from torch import Tensor

from charlm.cells import Cell
from charlm.layers.operators import refuse_symbols
from charlm.native.operators import random_mask
from charlm.system.process_group import WHOLE_BATCH, Shard
from charlm.system.section import MOST_PROBABLE


def check_probability(name: str, p: float) -> None:
    """ValueError unless p is a number that a config allows as a probability."""
    if isinstance(p, bool) or not isinstance(p, int | float) or not 0 <= p <= MOST_PROBABLE:
        raise ValueError(f"{name}: found {p!r}; allowed: a number ≥ 0 and ≤ {MOST_PROBABLE}")


def dropout_mask(
    shape: tuple[int, ...], p: float, like: Tensor, *, shard: Shard = WHOLE_BATCH, streams: int = 1
) -> Tensor:
    """A mask of 0 with probability p, else 1/(1−p): multiplying by it leaves the expected value unchanged.

    Drawn from torch's global generator, in the dtype and on the device of `like`. On the CPU, p is rounded to a
    multiple of 2⁻¹⁶: drawing sixteen random bits per element is much faster than torch's own draws.

    shard: this shard, along the dimension `streams`, of the whole batch's mask: masks do not depend on the number of
    processes.
    """
    check_probability("p", p)
    if like.device.type == "cpu":
        refuse_symbols()
        return random_mask(shape, max(1, round((1 - p) * 2**16)), shard, streams).to(like.dtype)
    whole = (*shape[:streams], shape[streams] * shard.count, *shape[streams + 1 :])
    mask = torch.empty(whole, device=like.device).bernoulli_(1 - p).div_(1 - p)
    return shard.of(mask, streams).to(like.dtype)


def unit_mask(values_TBF: Tensor, p: float, *, variational: bool, shard: Shard) -> Tensor:
    """A mask for the units of values, [T, B, F]; if variational, one for all steps, [1, B, F]."""
    T, B, F = values_TBF.shape
    return dropout_mask((1 if variational else T, B, F), p, values_TBF, shard=shard)


def drop_units(values_TBF: Tensor, p: float, *, variational: bool, shard: Shard) -> Tensor:
    """Drop units of values; if variational, the same units in all T steps."""
    return values_TBF * unit_mask(values_TBF, p, variational=variational, shard=shard)


def zoneout_shares(
    cell: Cell, p: float, shape: tuple[int, int, int], like: Tensor, *, training: bool, shard: Shard
) -> Tensor:
    """The share of its previous value that each unit keeps, [T, B, S · H], or [1, 1, S · H] of all steps and streams.

    Drawn in training, else the expected value. p: the probability that a unit keeps its previous value. shape: T, B and
    S · H for S states. 0 for internal states.
    """
    if training and p > 0:
        zoneout_TBS = (dropout_mask(shape, p, like, shard=shard) == 0).to(like.dtype)
    else:
        zoneout_TBS = like.new_full((1, 1, shape[2]), p)
    for name, zoneout_TBH in zip(cell.states, zoneout_TBS.chunk(len(cell.states), dim=2), strict=True):
        if name in cell.internal:
            zoneout_TBH.zero_()
    return zoneout_TBS
