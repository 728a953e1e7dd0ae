"""The precision of a run, chosen once: it is part of the run's config from then on."""

import contextlib

import torch

from charlm.cells import CELLS
from charlm.config import Config
from charlm.native.build import KernelError, load
from charlm.native.precision import choose_precision
from charlm.native.shared import SHARED_KERNELS
from charlm.system.console import say


def with_precision(config: Config, device: torch.device) -> Config:
    """The config with a precision in place of `auto`; prints why, or why another one would be faster."""
    kernel = CELLS[config.model.cell.kind].cpu_kernel
    if kernel and device.type == "cpu":
        with contextlib.suppress(KernelError):  # all kernels at once, because they compile in parallel
            load(kernel, *SHARED_KERNELS)
    precision, reason = choose_precision(config.precision, device)
    if reason:
        say("auto" if config.precision == "auto" else "slow", f"precision {precision}: {reason}")
    return config.model_copy(update={"precision": precision})
