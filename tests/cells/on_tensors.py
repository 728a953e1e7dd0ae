"""A cell's step on tensors, the truth that programs and kernels are held against."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells import Parameters
from charlm.layers.backend import LayerState
from charlm.layers.stack import RecurrentLayers


class TensorParameters(Parameters):
    """A layer's parameters as tensors, so that `cell.step(p, x_BI, *states)` computes the states after a step.

    Several vectors side by side are [gates, B, H]; rows of a vector are [gates, 1, H], one alone is [1, H].
    """

    def __init__(self, parameters: Mapping[str, Tensor], square: bool) -> None:
        self.parameters, self.square = parameters, square

    def product(self, name: str, operand: Any, gates: int = 1, *, index: int | None = None, **other: Any) -> Tensor:
        product_BG = F.linear(operand, self._of_stack(name, index))
        return product_BG if gates == 1 else product_BG.unflatten(-1, (gates, -1)).movedim(-2, 0)

    def vector(self, name: str, gates: int = 1, *, index: int | None = None, of: int = 0, **other: Any) -> Tensor:
        rows = gates if index is not None else gates * max(of, 1)
        vectors = self._of_stack(name, index)
        return vectors.reshape(1, -1) if rows == 1 else vectors.reshape(rows, 1, -1)

    def note(self, **gates: Any) -> None:
        """Nobody watches."""

    show = note

    def _of_stack(self, name: str, index: int | None) -> Tensor:
        return self.parameters[name] if index is None else self.parameters[name][index]


def step_by_step(layers: RecurrentLayers, x_TBI: Tensor, state: LayerState) -> tuple[Tensor, LayerState]:
    """Outputs [T, B, H] and last states [B, H] of the first layer, by calling `step` for every time step."""
    parameters = layers.layer_parameters(0)
    p = TensorParameters(parameters, square=layers.input_size == layers.hidden_size)
    outputs = []
    for x_BI in x_TBI:
        after = layers.cell.step(p, x_BI, *state)
        state = after if isinstance(after, tuple) else (after,)
        outputs.append(state[0])
    return torch.stack(outputs), state
