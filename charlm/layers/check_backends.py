"""Whether all ways to compute a cell agree: the reference loop, and every backend there is."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from charlm.cells import Cell
from charlm.errors import CellError
from charlm.layers.backend import Backend
from charlm.layers.reference import REFERENCE
from charlm.layers.selection import backends
from charlm.layers.stack import RecurrentLayers

HIDDEN = 13
_INPUTS, _STEPS, _STREAMS, _RUNS = 5, 6, 3, 4
_TIMES = 4
"""How much more a backend may err than the reference loop in float32."""
_EXACT = 1e-10
"""How much it may err in float64, relative to the largest value or 1."""

Results = dict[str, Tensor]
"""Outputs, last states, and gradients."""


def agreements(cell: Cell) -> Iterator[tuple[str, str]]:
    """Compare every backend, for each number of inputs that the cell allows; yields (what was compared, outcome).

    The cell has HIDDEN units. CellError for the first thing that does not agree, or is not finite.
    """
    for inputs in (_INPUTS, HIDDEN):
        where = "I = H" if inputs == HIDDEN else "I ≠ H"
        try:
            cell.program(square=inputs == HIDDEN)
        except CellError as error:
            if inputs == HIDDEN:
                raise
            yield where, f"not allowed: {error}"
            continue
        for name, text in _agreements(cell, inputs):
            yield f"{where}, {name}", text


def _agreements(cell: Cell, inputs: int) -> Iterator[tuple[str, str]]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        layers = RecurrentLayers(cell, inputs).double()
        with torch.no_grad():
            for parameter in layers.parameters():  # some initial values, such as 0, hide an effect
                parameter += 0.2 * torch.randn_like(parameter)
        starts = [_start(layers) for _ in range(_RUNS)]
    truth = _runs(layers, REFERENCE, starts)
    if faulty := [name for one in truth for name, tensor in one.items() if not tensor.isfinite().all()]:
        raise CellError(
            f"{cell.name}: {faulty[0]} is not finite; allowed: steps whose exp, log, sqrt and ÷ stay finite"
        )
    parameters = dict(layers.named_parameters())
    if without := [name for name in parameters if not any(one[f"d{name}"].any() for one in truth)]:
        yield "without gradient", ", ".join(name.removesuffix("_l0") for name in without)
    single = copy.deepcopy(layers).float()
    rounding = _runs(single, REFERENCE, starts)
    largest = max(_largest(rounding, truth, name) for name in truth[0])
    yield "reference loop in float32", f"agrees with float64; largest difference {largest:.1g}"
    for device in map(torch.device, ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]):
        for dtype, variant, expected in (
            ("float64", layers.to(device), truth),
            ("float32", single.to(device), rounding),
        ):
            for backend in backends(variant, device):
                name = f"{backend.name} in {dtype} on {device.type}"
                if reason := backend.prepare(True):
                    yield name, f"left out: {reason}"
                elif backend.name != REFERENCE.name or device.type != "cpu":
                    yield name, _compared(f"{cell.name}: {name}", _runs(variant, backend, starts), expected, truth)


def _start(layers: RecurrentLayers) -> tuple[Tensor, ...]:
    """An input, and a state that a step from zeros reaches."""
    x_TBI, before_TBI = torch.randn(2, _STEPS, _STREAMS, layers.input_size, dtype=torch.float64)
    with torch.no_grad():
        _, state = layers.forward_reference(before_TBI[:1])
    return x_TBI, *(tensor[0] for tensor in state)


def _runs(layers: RecurrentLayers, backend: Backend, starts: list[tuple[Tensor, ...]]) -> list[Results]:
    return [_run(layers, backend, start) for start in starts]


def _run(layers: RecurrentLayers, backend: Backend, start: tuple[Tensor, ...]) -> Results:
    """Outputs, last states, and all gradients of the first layer, under fixed gradients of both."""
    like, names = layers.like, layers.cell.states
    x_TBI, *state = (tensor.to(like).requires_grad_() for tensor in start)
    y_TBH, last = backend.layer(x_TBI, layers.layer_call(0, tuple(state), len(x_TBI), training=True))
    outputs = {"y": y_TBH} | dict(zip(names, last, strict=True))
    inputs = {"dx": x_TBI} | {f"d{name}0": tensor for name, tensor in zip(names, state, strict=True)}
    inputs |= {f"d{name}": parameter for name, parameter in layers.named_parameters()}
    generator = torch.Generator().manual_seed(2)
    upstream = [torch.randn(output.shape, generator=generator).to(output) for output in outputs.values()]
    connected = [pair for pair in zip(outputs.values(), upstream, strict=True) if pair[0].requires_grad]
    if not connected:
        raise CellError(f"{layers.cell.name}: no gradient reaches any parameter; allowed: a step that can learn")
    ends, d_ends = zip(*connected, strict=True)
    gradients = torch.autograd.grad(ends, [*inputs.values()], d_ends, allow_unused=True, materialize_grads=True)
    results = outputs | dict(zip(inputs, gradients, strict=True))
    return {name: tensor.detach().cpu().double() for name, tensor in results.items()}


def _compared(label: str, results: list[Results], expected: list[Results], truth: list[Results]) -> str:
    """The largest difference from the truth, in words. CellError if the errors exceed _TIMES the expected errors."""
    tolerance = _EXACT if expected is truth else 2 * torch.finfo(torch.float32).eps
    for name in truth[0]:
        size = max(float(run[name].abs().max()) for run in truth)
        allowed = _TIMES * _largest(expected, truth, name) + tolerance * max(1.0, size)
        found = _largest(results, truth, name)
        if not found <= allowed:
            raise CellError(f"{label}: {name} differs from the reference loop by up to {found:.2g}; allowed: rounding")
    return f"agrees; largest difference {max(_largest(results, truth, name) for name in truth[0]):.1g}"


def _largest(results: list[Results], truth: list[Results], name: str) -> float:
    """The largest error of a result in all runs; NaN if one is NaN."""
    errors = [(result[name] - true[name]).abs().max() for result, true in zip(results, truth, strict=True)]
    return float(torch.stack(errors).max())
