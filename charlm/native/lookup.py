"""Inputs that are rows of a table, such as an embedding."""

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor


class Lookup(NamedTuple):
    """An input [T, B, I] whose vectors are rows of a table [V, I].

    A layer can multiply the table by its weights and look up rows of the product: V products instead of T · B.
    """

    ids_TB: Tensor
    table_VI: Tensor | None
    """None: the identity matrix, so the input is one-hot and I = V."""

    def dense(self, input_size: int, like: Tensor) -> Tensor:
        """The input as a tensor [T, B, I]; a one-hot input has the dtype and device of `like`."""
        if self.table_VI is not None:
            return F.embedding(self.ids_TB, self.table_VI)
        return like.new_zeros(*self.ids_TB.shape, input_size).scatter_(-1, self.ids_TB.unsqueeze(-1), 1.0)


def check_ids(name: str, ids: Tensor, V: int) -> None:
    """ValueError unless all ids are from 0 to V − 1."""
    if ids.numel():
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= V:
            raise ValueError(f"{name}: found {low} to {high}; allowed: 0 to {V - 1}")
