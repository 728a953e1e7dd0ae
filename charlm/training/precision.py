"""The precision of a run, chosen once: it is part of the run's config from then on."""

from collections.abc import Iterable

import torch

from charlm.cells import Cell
from charlm.config import Config
from charlm.native.build import KernelError, load
from charlm.native.fused import fused
from charlm.native.precision import choose_precision
from charlm.native.shared import SHARED_KERNELS
from charlm.system.console import say


def compile_kernels(cells: Iterable[Cell], device: torch.device) -> KernelError | None:
    """Compile the CPU kernels of all cells at once, in parallel; returns why there are none."""
    if device.type == "cpu":
        try:
            load(*dict.fromkeys(fused(cell) for cell in cells), *SHARED_KERNELS)
        except KernelError as error:
            return error
    return None


def with_precision(config: Config, device: torch.device) -> Config:
    """The config with a precision in place of `auto`; prints why, or why another one would be faster."""
    compile_kernels([config.model.cell], device)
    precision, reason = choose_precision(config.precision, device)
    if reason:
        say("auto" if config.precision == "auto" else "slow", f"precision {precision}: {reason}")
    return config.model_copy(update={"precision": precision})
