"""Inputs that are rows of a table."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Lookup(NamedTuple):
    """An input [T, B, I] of which each vector is a row of a table [V, I]: what characters become.

    A layer's linear map of it is the same rows of the mapped table, V products in place of T · B.
    """

    ids_TB: Tensor
    table_VI: Tensor | None
    """None: one-hot vectors, the rows of the identity, I = V."""

    def dense(self, input_size: int, like: Tensor) -> Tensor:
        """The input itself, [T, B, I], in the dtype and on the device of `like`."""
        if self.table_VI is not None:
            return F.embedding(self.ids_TB, self.table_VI)
        return like.new_zeros(*self.ids_TB.shape, input_size).scatter_(-1, self.ids_TB.unsqueeze(-1), 1.0)


def check_ids(name: str, ids: Tensor, V: int) -> None:
    """ValueError unless all are from 0 to V − 1."""
    if ids.numel():
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= V:
            raise ValueError(f"{name}: found {low} to {high}; allowed are 0 to {V - 1}")
