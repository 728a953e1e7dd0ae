"""How much memory a run needs, estimated before it is allocated."""

from charlm.cells.derivative import least_saved
from charlm.config import Config
from charlm.errors import DeviceError
from charlm.model import count_parameters
from charlm.system.formatting import format_bytes
from charlm.training.machine import Machine
from charlm.training.optimizer import least_copies


def check_memory(config: Config, vocabulary_size: int, machine: Machine) -> None:
    """DeviceError, with the figures, if a run needs more memory than the machine has free."""
    needed, free, device = least_bytes(config, vocabulary_size, machine), machine.free_bytes, machine.device.type
    processes = machine.group.local_size if device == "cpu" else 1
    if free is not None and needed > free:
        raise DeviceError(
            f"memory: the model and a window{f' of {processes} processes' if processes > 1 else ''} need at least "
            f"{format_bytes(needed)}; {format_bytes(free)} are available ({device}); lower model.cell.hidden, "
            "model.layers, train.batch_size or train.bptt"
        )


def least_bytes(config: Config, vocabulary_size: int, machine: Machine) -> int:
    """A lower bound in bytes: weights, gradients, optimizer state, and what one window saves per character.

    Of all processes that share the device's memory; each has its own model and a shard of the batch.
    """
    model, train, group = config.model, config.train, machine.group
    parameters = count_parameters(model, vocabulary_size)
    # Numbers per character: what the layers save for the backward pass, and logits with their gradient.
    per_char = least_saved(model.cell) * model.layers * model.cell.hidden + 2 * vocabulary_size
    copies = 2 + least_copies(config.optimizer) + (train.ema > 0)
    of_process = 4 * (copies * parameters + train.batch_size // group.size * train.bptt * per_char)
    return of_process * (group.local_size if machine.device.type == "cpu" else 1)
