"""How much memory a run needs, estimated before it is allocated."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from charlm.cells import CELLS
from charlm.config import Config
from charlm.errors import DeviceError
from charlm.model import count_parameters
from charlm.system.formatting import format_bytes
from charlm.system.world import ALONE, World
from charlm.training.optimizer import least_copies


def check_memory(config: Config, vocabulary_size: int, device: torch.device, world: World = ALONE) -> None:
    """DeviceError, with the figures, if a run needs more memory than `device` has available.

    Processes on one machine share its memory, and each has a model of its own.
    """
    needed, available = bytes_on_device(config, vocabulary_size, device, world), available_bytes(device)
    of = f" of {world.local_size} processes" if device.type == "cpu" and world.local_size > 1 else ""
    if available is not None and needed > available:
        raise DeviceError(
            f"memory: the model and a window{of} need at least {format_bytes(needed)}; {format_bytes(available)} are "
            f"available ({device.type}); lower model.cell.hidden, model.layers, train.batch_size or train.bptt"
        )


def bytes_on_device(config: Config, vocabulary_size: int, device: torch.device, world: World = ALONE) -> int:
    """`least_bytes` of all processes that share the memory of `device`."""
    return least_bytes(config, vocabulary_size, world.size) * (world.local_size if device.type == "cpu" else 1)


def least_bytes(config: Config, vocabulary_size: int, processes: int = 1) -> int:
    """A lower bound in bytes: weights, gradients, optimizer state, and what one window saves per character.

    For one of several processes, which share the batch.
    """
    model, train = config.model, config.train
    parameters = count_parameters(config.model, vocabulary_size)
    per_unit = CELLS[model.cell.kind].least_saved_per_unit(**model.cell.options())
    # Numbers per character: what the layers save for the backward pass, and logits with their gradient.
    a_character = per_unit * model.layers * model.cell.hidden + 2 * vocabulary_size
    copies = 2 + least_copies(config.optimizer) + (train.ema > 0)
    return 4 * (copies * parameters + train.batch_size // processes * train.bptt * a_character)


def available_bytes(device: torch.device, system: Path = Path("/")) -> int | None:
    """Memory available on `device` now; None if the system does not say. `system` is the root of its files."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = [*_free_bytes(system), *_group_bytes(system)]
    if found:
        return min(found)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


_UNTOLD = (OSError, ValueError, LookupError)


def _free_bytes(system: Path) -> Iterator[int]:
    """Linux: the memory that the machine has available."""
    with contextlib.suppress(*_UNTOLD):
        yield 1024 * _table(system / "proc/meminfo")["MemAvailable:"]


@dataclass(frozen=True)
class _Groups:
    """The files of a version of Linux's control groups."""

    root: str
    limit: str
    used: str
    inactive: str
    """The name in memory.stat of what files hold in memory and can be freed."""


_V1 = _Groups("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Groups("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def _group_bytes(system: Path) -> Iterator[int]:
    """Linux: memory left under the limits of this process's control groups (a container, say) and their parents."""
    with contextlib.suppress(*_UNTOLD):
        for line in (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            files = _V1 if controllers else _V2
            root = system / files.root
            own = root / path.lstrip("/")
            for group in (own, *own.parents):
                if not group.is_relative_to(root):
                    break
                # A group without the file, or with "max" in it, has no limit. Without a limit, v1 names one near 2⁶³.
                with contextlib.suppress(*_UNTOLD):
                    limit = int((group / files.limit).read_text())
                    used = int((group / files.used).read_text()) - _table(group / "memory.stat")[files.inactive]
                    yield max(0, limit - used)


def _table(file: Path) -> dict[str, int]:
    """A file with lines of a name, a number and, optionally, a unit."""
    return {line.split()[0]: int(line.split()[1]) for line in file.read_text(encoding="ascii").splitlines()}
