"""What a run needs of memory, estimated before any of it is taken."""

import os
from pathlib import Path

import torch

from charlm.config import Config
from charlm.errors import DeviceError
from charlm.model import count_parameters
from charlm.units import format_bytes


def check_memory(config: Config, vocabulary_size: int, device: torch.device) -> None:
    """DeviceError, with the figures, where a run needs more memory than `device` has to give."""
    needed, available = least_bytes(config, vocabulary_size), available_bytes(device)
    if available is not None and needed > available:
        raise DeviceError(
            f"memory: the model and a window need at least {format_bytes(needed)}; {format_bytes(available)} are "
            f"available ({device.type}); lower model.cell.hidden, model.layers, train.batch_size or train.bptt"
        )


def least_bytes(config: Config, vocabulary_size: int) -> int:
    """A lower bound: weights, gradients, their averages, and per character the states and logits of a window."""
    model, train = config.model, config.train
    parameters = count_parameters(config.model, vocabulary_size)
    depth = getattr(model.cell, "depth", 1)
    # Forward and backward keep, or make, at least: every state, and logits with their gradient.
    a_character = model.layers * depth * model.cell.hidden + 2 * vocabulary_size
    copies = 2 + _AVERAGES[config.optimizer.name] + (train.ema > 0)
    return 4 * (copies * parameters + train.batch_size * train.bptt * a_character)


_AVERAGES = {"adamw": 2, "adam": 2, "nadam": 2, "radam": 2, "muon": 1, "rmsprop": 1, "adagrad": 1, "sgd": 0}
"""Tensors of each parameter's size that an optimiser keeps at least."""


def available_bytes(device: torch.device) -> int | None:
    """Memory that can be had on `device` now; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
