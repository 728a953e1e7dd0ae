"""Whether all ways to compute a cell agree: the reference loop, and every backend there is."""

import copy
from collections.abc import Iterator

import torch

from charlm.cells import Cell
from charlm.errors import CellError
from charlm.layers.proof import (
    CPU,
    HIDDEN,
    INPUTS,
    RUNS,
    STEPS,
    STREAMS,
    Results,
    Start,
    disagreement,
    largest_error,
    moved,
    run,
)
from charlm.layers.reference import REFERENCE
from charlm.layers.selection import backends
from charlm.layers.stack import RecurrentLayers


def agreements(cell: Cell) -> Iterator[tuple[str, str]]:
    """Compare every backend, for each number of inputs that the cell allows; yields (what was compared, outcome).

    The cell has HIDDEN units. CellError for the first thing that does not agree, or is not finite.
    """
    for inputs in (INPUTS, HIDDEN):
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
        starts = [_start(layers) for _ in range(RUNS)]
    try:
        truth = [run(REFERENCE, start) for start in starts]
    except CellError as error:
        raise CellError(f"{cell.name}: {error}") from None
    if faulty := [name for one in truth for name, tensor in one.items() if not tensor.isfinite().all()]:
        raise CellError(
            f"{cell.name}: {faulty[0]} is not finite; allowed: steps whose exp, log, sqrt and ÷ stay finite"
        )
    parameters = layers.layer_parameters(0)
    if without := [name for name in parameters if not any(one[f"d{name}"].any() for one in truth)]:
        yield "without gradient", ", ".join(without)
    rounding = [run(REFERENCE, moved(start, CPU, torch.float32)) for start in starts]
    yield "reference loop in float32", f"agrees with float64; {_largest(rounding, truth)}"
    for device in map(torch.device, ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]):
        for dtype, expected in ((torch.float64, truth), (torch.float32, rounding)):
            there = [moved(start, device, dtype) for start in starts]
            for backend in backends(copy.deepcopy(layers).to(device, dtype), device):
                name = f"{backend.name} in {str(dtype).removeprefix('torch.')} on {device.type}"
                if reason := backend.prepare(True):
                    yield name, f"left out: {reason}"
                elif backend.name != REFERENCE.name or device.type != "cpu":
                    results = [run(backend, start) for start in there]
                    if fault := disagreement(results, expected, truth):
                        raise CellError(f"{cell.name}: {name}: {fault}; allowed: rounding")
                    yield name, f"agrees; {_largest(results, truth)}"


def _largest(results: list[Results], truth: list[Results]) -> str:
    return f"largest difference {max(largest_error(results, truth, name) for name in truth[0]):.1g}"


def _start(layers: RecurrentLayers) -> Start:
    """A call with a random input, and a state that a step from zeros reaches."""
    x_TBI, before_TBI = torch.randn(2, STEPS, STREAMS, layers.input_size, dtype=torch.float64)
    with torch.no_grad():
        _, state = layers.forward_reference(before_TBI[:1])
    return x_TBI, layers.layer_call(0, tuple(tensor[0] for tensor in state), STEPS, training=True)
