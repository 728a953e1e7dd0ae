"""A cell's step on tensors, the truth that programs and kernels are held against, and its program on tensors."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells import Parameters
from charlm.cells.program import Program
from charlm.layers import RecurrentLayers, RecurrentState
from charlm.layers.reference import TensorProgram

Forward = Callable[[Tensor, RecurrentState], tuple[Tensor, RecurrentState]]
"""As `RecurrentLayers.forward`, of the first layer alone, without dropout and zoneout."""


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


def by_step(layers: RecurrentLayers) -> Forward:
    """By calling the cell's own `step`."""
    p = TensorParameters(layers.layer_parameters(0), square=layers.input_size == layers.hidden_size)
    return _repeated(lambda x_BI, *states: layers.cell.step(p, x_BI, *states))


def by_program(layers: RecurrentLayers, program: Program) -> Forward:
    """By evaluating a whole program."""
    evaluate = TensorProgram(program, program.results, layers.layer_parameters(0))

    def step(x_BI: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        return tuple(evaluate({"input": x_BI, "state": dict(zip(program.states, states, strict=True))}))

    return _repeated(step)


def _repeated(step: Callable[..., Any]) -> Forward:
    """A step again and again."""

    def forward(x_TBI: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        states, outputs = tuple(tensor[0] for tensor in state), []
        for x_BI in x_TBI:
            after = step(x_BI, *states)
            states = after if isinstance(after, tuple) else (after,)
            outputs.append(states[0])
        return torch.stack(outputs), tuple(tensor[None] for tensor in states)

    return forward
