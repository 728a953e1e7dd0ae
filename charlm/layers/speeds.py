"""How fast cells learn on the CPU, measured in turns."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from charlm.cells import Cell
from charlm.layers.stack import RecurrentLayers
from charlm.native.precision import choose_precision
from charlm.system.device import autocast

HIDDEN, STREAMS, STEPS = 128, 16, 64
_ENOUGH_S = 1.0
"""Total time of the measurement; each cell is measured at least once."""


class Speed(NamedTuple):
    """The speed of a cell."""

    chars_per_s: float
    backend: str
    """The backend, if a faster one cannot compute the cell; else ""."""


def speeds(cells: Sequence[Cell]) -> tuple[str, list[Speed]]:
    """The precision that training would use, and the speed of each cell in it.

    Characters per second of a window of STREAMS × STEPS, forward and backward, through a layer with HIDDEN inputs; the
    cells have HIDDEN units. The best of all windows: other work on the machine can only slow one.
    """
    device = torch.device("cpu")
    precision, _ = choose_precision("auto", device)
    with torch.random.fork_rng(devices=[]), autocast(device, precision):
        layers = [RecurrentLayers(cell, HIDDEN) for cell in cells]
        chosen = [each.select_backend(device) for each in layers]
        windows = [_windows(each) for each in layers]
        for each in windows:
            next(each)  # the first one also asks for memory
        best_s = [float("inf")] * len(cells)
        end_s = time.perf_counter() + _ENOUGH_S
        while best_s[-1] == float("inf") or time.perf_counter() < end_s:
            best_s = [min(before, next(each)) for before, each in zip(best_s, windows, strict=True)]
    slower = [each.backend.name if each.passed_over else "" for each in chosen]
    return precision, [Speed(STREAMS * STEPS / seconds, text) for seconds, text in zip(best_s, slower, strict=True)]


def _windows(layers: RecurrentLayers) -> Iterator[float]:
    """Seconds of one window after another."""
    x_TBI = torch.randn(STEPS, STREAMS, HIDDEN, requires_grad=True)
    dy_TBH = torch.randn(STEPS, STREAMS, HIDDEN)
    while True:
        start_s = time.perf_counter()
        y_TBH, _ = layers(x_TBI)
        y_TBH.backward(dy_TBH)
        yield time.perf_counter() - start_s
