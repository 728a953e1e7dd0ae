"""Which backend computes layers: the ways there are on a device, and the fastest that can."""

import importlib.util
from functools import partial
from typing import NamedTuple

import torch

from charlm.cells.state_options import ALL, StateOptions
from charlm.gpu.recurrence import DRIVERS, GpuDriver
from charlm.layers.backend import Backend, Task
from charlm.layers.gpu_proof import fault_on_device
from charlm.layers.recurrence import cpu_layer, gpu_layer
from charlm.layers.reference import REFERENCE
from charlm.layers.torch_operator import torch_backends, torch_lacks
from charlm.native.kernels import SHARED_KERNELS
from charlm.native.loading import KernelError, allowed_sources, load
from charlm.native.recurrence import CpuDriver
from charlm.system.device import autocasts_to_bf16


class Selection(NamedTuple):
    """The backend that computes a layer, and why each faster one cannot."""

    kind: str
    backend: Backend
    passed_over: dict[str, str]
    """Name of each faster backend → why it cannot compute the layer."""

    @property
    def description(self) -> str:
        """One line, e.g. "rhn: reference loop; no fused CPU kernel: no C++ compiler"."""
        return f"{self.kind}: {self.way}"

    @property
    def way(self) -> str:
        """The description without the kind."""
        library = f" ({self.backend.library})" if self.backend.library else ""
        names: dict[str, list[str]] = {}  # by reason
        for name, reason in self.passed_over.items():
            names.setdefault(reason, []).append(name)
        reasons = [f"; no {' and no '.join(those)}: {reason}" for reason, those in names.items()]
        return f"{self.backend.name}{library}{''.join(reasons)}"


def select(task: Task, device: torch.device) -> Selection:
    """The fastest backend that can compute layers, see `RecurrentLayers.select_backend`."""
    candidates = backends(task, device)
    if task.options.resets:  # drivers are faster than a call of torch from each reset to the next
        candidates.sort(key=lambda backend: backend.driver is None)
    passed_over: dict[str, str] = {}
    for backend in candidates:
        reason = lacks(backend, task, device)
        if not reason and isinstance(backend.driver, GpuDriver):
            reason = fault_on_device(backend.driver, task, device)
        if not reason:
            passed_over.pop(backend.name, None)
            return Selection(task.cell.name, backend, passed_over)
        passed_over[backend.name] = reason
    raise AssertionError("the reference loop lacks nothing")


def backends(task: Task, device: torch.device) -> list[Backend]:
    """The ways to compute layers on `device`, fastest first; the last one can compute every layer."""
    by_torch = torch_backends(task, device)
    if device.type == "cpu":
        return [cpu_backend(task, task.options), *by_torch, cpu_backend(task, ALL), REFERENCE]
    return [*by_torch, *(gpu_backend(driver, task) for driver in DRIVERS), REFERENCE]


def cpu_backend(task: Task, options: StateOptions) -> Backend:
    """The kernels of the CPU for these options. Of usual cells, wheels bring those for PLAIN and ALL."""
    driver = CpuDriver(task.cell.name, task.both_passes(options))
    library = "" if options == task.options else "for all options"
    return Backend("fused CPU kernel", partial(cpu_layer, driver), library, driver, options)


def gpu_backend(driver: GpuDriver, task: Task) -> Backend:
    """The kernels of GPUs."""
    return Backend(driver.name, partial(gpu_layer, driver, task.buffers), "Triton's kernels", driver)


def lacks(backend: Backend, task: Task, device: torch.device) -> str | None:
    """Why a backend cannot compute layers, or None if it can. Compiles the cell's CPU kernel at first use."""
    driver = backend.driver
    if driver is None:
        return None if backend is REFERENCE else torch_lacks(task, backend.library)
    if task.dtype != torch.float32:
        return "it needs float32 parameters"
    try:
        if isinstance(driver, GpuDriver):
            if importlib.util.find_spec("triton") is None:
                return "no Triton"
            allowed_sources()
            return driver.lacks(device, task.both_passes(task.options))
        if torch.is_autocast_enabled("cpu") and not autocasts_to_bf16():
            return "it multiplies in float32 or bfloat16 only"
        load(driver.kernel, *SHARED_KERNELS)
    except KernelError as error:
        return str(error)
    return None
