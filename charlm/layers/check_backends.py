"""Whether all ways to compute a cell agree: the reference loop, and every backend there is."""

from collections.abc import Iterator

import torch

from charlm.cells import Cell
from charlm.cells.state_options import ALL, PLAIN
from charlm.errors import CellError
from charlm.layers.gpu_proof import CPU, HIDDEN, INPUTS, Results, disagreement, largest_error, moved, random_starts, run
from charlm.layers.reference import REFERENCE
from charlm.layers.selection import backends, lacks
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
        task = layers.task(training=True)
        [form] = task.layers
        [(x_TBI, call), *_] = random_starts(form, PLAIN, layers.layer_parameters(0))
        from_zeros = x_TBI, call._replace(state=tuple(map(torch.zeros_like, call.state)))
        _check_finite(cell, [run(REFERENCE, from_zeros)], " from the zero state")
        with torch.no_grad():
            for parameter in layers.parameters():  # some initial values, such as 0, hide an effect
                parameter += 0.2 * torch.randn_like(parameter)
    starts = [from_zeros, *random_starts(form, PLAIN, layers.layer_parameters(0))]
    truth = [run(REFERENCE, start) for start in starts]
    _check_finite(cell, truth)
    trained = [declared.name for declared in form.program.parameters if not declared.fixed]
    values = ("y", *cell.states)
    if not any(tensor.any() for one in truth for name, tensor in one.items() if name not in values):
        raise CellError(f"{cell.name}: found no gradient; allowed: a step that can learn")
    if without := [name for name in trained if not any(one[f"d{name}"].any() for one in truth)]:
        yield "without gradient", ", ".join(without)
    rounding = [run(REFERENCE, moved(start, CPU, torch.float32)) for start in starts]
    yield "reference loop in float32", f"agrees with float64; {_largest(rounding, truth)}"
    for device in map(torch.device, ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]):
        for dtype, expected in ((torch.float64, truth), (torch.float32, rounding)):
            there = [moved(start, device, dtype) for start in starts]
            own_task = task._replace(dtype=dtype)
            for backend in backends(own_task, device):
                if backend.options == ALL:  # what is compared has no options
                    continue
                name = f"{backend.name} in {str(dtype).removeprefix('torch.')} on {device.type}"
                if reason := lacks(backend, own_task, device):
                    yield name, f"left out: {reason}"
                elif backend is not REFERENCE or device.type != "cpu":
                    results = [run(backend, start) for start in there]
                    if fault := disagreement(results, expected, truth):
                        raise CellError(f"{cell.name}: {name}: {fault}; allowed: rounding")
                    yield name, f"agrees; {_largest(results, truth)}"


def _check_finite(cell: Cell, runs: list[Results], when: str = "") -> None:
    for results in runs:
        for name, tensor in results.items():
            if not tensor.isfinite().all():
                what = name if name in ("y", *cell.states) else f"the gradient {name}"
                raise CellError(
                    f"{cell.name}: {what} is not finite{when}; allowed: steps whose exp, log, sqrt and ÷, and their "
                    "derivatives, stay finite; for example sqrt(v + 1e-8)"
                )


def _largest(results: list[Results], truth: list[Results]) -> str:
    return f"largest difference {max(largest_error(results, truth, name) for name in truth[0]):.1g}"
