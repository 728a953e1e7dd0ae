"""What a run computes on, chosen once, before the text is read; and how much of its memory a run needs."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from charlm.cells import Cell
from charlm.cells.derivative import least_saved
from charlm.cells.state_options import ALL, StateOptions
from charlm.config import Config
from charlm.errors import DeviceError
from charlm.model import count_weights
from charlm.native.kernels import SHARED_KERNELS, kernel_of
from charlm.native.loading import KernelError, load
from charlm.native.precision import choose_precision
from charlm.system.cache import cache_folder
from charlm.system.device import available_bytes, keep_freed_memory, prepare_device, resolve_device, set_threads
from charlm.system.formatting import format_bytes
from charlm.system.host import raise_limit_or
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.optimizer import LEAST_COPIES


@dataclass(frozen=True)
class Machine:
    """What a run computes on."""

    device: torch.device
    group: ProcessGroup
    threads: int
    """CPU threads of this process."""
    precision: str
    """Of matrix products: fp32, tf32 or bf16."""
    precision_reason: str
    """Why `auto` took it, or why another one would be faster; "" if there is nothing to say."""
    free_bytes: int | None
    """Free memory of the device before the run takes any; None if the system does not say."""
    has_kernels: bool
    """Whether the CPU kernels compile; True on a GPU, which needs none."""


def choose_machine(config: Config, group: ProcessGroup = ONE_PROCESS, cells: Sequence[Cell] = ()) -> Machine:
    """The machine for a config, set up for its device, threads and precision. All processes of the group call this.

    Compiles the kernels of `cells`, by default of the config's cell. DeviceError for a device that is not there or
    lacks the precision, DataError for a cache in which no text can be kept.
    """
    set_threads(group.threads(config.threads))
    device = group.on_each(resolve_device, config.device, group)
    group.use(device)
    keep_freed_memory()
    free_bytes = available_bytes(device)
    group.local_first(cache_folder, "corpora")  # compiling takes a minute, after which the text would not be read
    has_kernels = device.type != "cpu" or group.local_first(_compile_kernels, config, cells)
    precision, reason = group.on_first(choose_precision, config.precision, device)
    group.on_each(prepare_device, device, precision)
    return Machine(device, group, torch.get_num_threads(), precision, reason, free_bytes, has_kernels)


def _compile_kernels(config: Config, cells: Sequence[Cell]) -> bool:
    """Load the kernels for training and evaluation, or else those for all options; returns whether there are any."""
    model = config.model
    evaluation = StateOptions(resets=bool(config.data.records), zoneout=model.zoneout > 0)
    training = evaluation._replace(mask=model.dropout.state > 0)
    for options in ([training, evaluation], [ALL]):
        with suppress(KernelError):
            kernels = [kernel_of(cell, one) for cell in cells or [model.cell] for one in options]
            load(*dict.fromkeys(kernels), *SHARED_KERNELS)
            return True
    return False


def check_memory(config: Config, vocabulary_size: int, machine: Machine) -> None:
    """DeviceError, with the figures, if a run needs more memory than the machine has free."""
    needed, free, device = least_bytes(config, vocabulary_size, machine), machine.free_bytes, machine.device.type
    processes = machine.group.local_size if device == "cpu" else 1
    if free is not None and needed > free:
        advice = raise_limit_or("lower model.cell.hidden, model.layers, train.batch_size or train.bptt")
        raise DeviceError(
            f"memory: the model and a window{f' of {processes} processes' if processes > 1 else ''} need at least "
            f"{format_bytes(needed)}; {format_bytes(free)} are available ({device}); {advice}"
        )


def least_bytes(config: Config, vocabulary_size: int, machine: Machine) -> int:
    """A lower bound, of all processes that share the device: weights, gradients, optimizer state, and a window."""
    model, train, group = config.model, config.train, machine.group
    parameters = count_weights(model, vocabulary_size)
    # Numbers per stream: what the layers save for the backward pass, and logits with their gradient.
    saved = least_saved(model.cell) * model.layers * model.cell.hidden * train.bptt
    per_stream = model.members * (saved + 2 * vocabulary_size * train.scored_steps)
    copies = 2 + LEAST_COPIES[config.optimizer.name] + (train.ema > 0)
    of_process = 4 * (copies * parameters + train.batch_size // group.size * per_stream)
    return of_process * (group.local_size if machine.device.type == "cpu" else 1)
