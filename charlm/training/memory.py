"""How much memory a run needs, estimated before it is allocated."""

from pathlib import Path

import torch

from charlm.cells.derivative import least_saved
from charlm.config import Config
from charlm.errors import DeviceError
from charlm.model import count_parameters
from charlm.system.formatting import format_bytes
from charlm.system.memory import free_bytes
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.optimizer import least_copies


def check_memory(config: Config, vocabulary_size: int, device: torch.device, group: ProcessGroup = ONE_PROCESS) -> None:
    """DeviceError, with the figures, if a run needs more memory than `device` has available.

    Processes on one machine share its memory, and each has a model of its own.
    """
    needed, available = bytes_on_device(config, vocabulary_size, device, group), available_bytes(device)
    of = f" of {group.local_size} processes" if device.type == "cpu" and group.local_size > 1 else ""
    if available is not None and needed > available:
        raise DeviceError(
            f"memory: the model and a window{of} need at least {format_bytes(needed)}; {format_bytes(available)} are "
            f"available ({device.type}); lower model.cell.hidden, model.layers, train.batch_size or train.bptt"
        )


def bytes_on_device(
    config: Config, vocabulary_size: int, device: torch.device, group: ProcessGroup = ONE_PROCESS
) -> int:
    """`least_bytes` of all processes that share the memory of `device`."""
    return least_bytes(config, vocabulary_size, group.size) * (group.local_size if device.type == "cpu" else 1)


def least_bytes(config: Config, vocabulary_size: int, processes: int = 1) -> int:
    """A lower bound in bytes: weights, gradients, optimizer state, and what one window saves per character.

    For one of several processes, which share the batch.
    """
    model, train = config.model, config.train
    parameters = count_parameters(config.model, vocabulary_size)
    per_unit = least_saved(model.cell)
    # Numbers per character: what the layers save for the backward pass, and logits with their gradient.
    a_character = per_unit * model.layers * model.cell.hidden + 2 * vocabulary_size
    copies = 2 + least_copies(config.optimizer) + (train.ema > 0)
    return 4 * (copies * parameters + train.batch_size // processes * train.bptt * a_character)


def available_bytes(device: torch.device, system: Path = Path("/")) -> int | None:
    """Memory available on `device` now; None if the system does not say. `system` is the root of its files."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_bytes(system)
