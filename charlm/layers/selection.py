"""Which backend computes a stack's layers: the ways there are on a device, and the fastest that can."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from charlm.gpu.recurrence import DRIVERS, GpuDriver
from charlm.layers.backend import Backend, LayerCall, LayerState
from charlm.layers.proof import fault_on_device
from charlm.layers.recurrence import layer_by_driver
from charlm.layers.reference import REFERENCE
from charlm.layers.torch_operator import torch_backend
from charlm.native.kernels import SHARED_KERNELS
from charlm.native.loading import KernelError, allowed_sources, load
from charlm.system.device import autocasts_to_bf16

if TYPE_CHECKING:
    from charlm.layers.stack import RecurrentLayers


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


def select(layers: RecurrentLayers, device: torch.device, *, training: bool, resets: bool) -> Selection:
    """The fastest backend that can compute these layers, see `RecurrentLayers.select_backend`."""
    candidates = backends(layers, device)
    if resets:  # drivers, which take them, are faster than calls for every step at which any stream is reset
        candidates.sort(key=lambda backend: not backend.by_driver)
    passed_over: dict[str, str] = {}
    while reason := candidates[0].prepare(training) or candidates[0].prove(training, resets):
        passed_over[candidates.pop(0).name] = reason
    return Selection(layers.kind, candidates[0], passed_over)


def backends(layers: RecurrentLayers, device: torch.device) -> list[Backend]:
    """The ways to compute a layer on `device`, fastest first; the last one can compute every layer."""
    operator = torch_backend(layers, device)
    torchs = [] if operator is None else [operator]
    if device.type == "cpu":
        return [cpu_backend(layers), *torchs, REFERENCE]
    return [*torchs, *(gpu_backend(layers, driver, device) for driver in DRIVERS), REFERENCE]


def cpu_backend(layers: RecurrentLayers) -> Backend:
    """The kernels of the CPU."""

    def compute(x: Any, call: LayerCall) -> tuple[Tensor, LayerState]:
        return layer_by_driver(layers.cpu_driver, layers.buffer_cache, layers.input_size, x, call)

    return Backend("fused CPU kernel", compute, partial(lacks_cpu_kernel, layers), by_driver=True, generates=True)


def gpu_backend(layers: RecurrentLayers, driver: GpuDriver, device: torch.device) -> Backend:
    """The kernels of GPUs, which prove themselves before the first use."""
    return Backend(
        driver.name,
        partial(layer_by_driver, driver, layers.buffer_cache, layers.input_size),
        partial(lacks_gpu_kernels, layers, driver, device),
        "Triton's kernels",
        by_driver=True,
        prove=partial(fault_on_device, layers, driver, device),
    )


def lacks_cpu_kernel(layers: RecurrentLayers, training: bool) -> str | None:
    """Compile the kind's CPU kernel at first use; why it cannot compute a layer, or None if it can."""
    parameter = layers.like
    if parameter.device.type != "cpu" or parameter.dtype != torch.float32:
        return "it needs float32 parameters on the CPU"
    if torch.is_autocast_enabled("cpu") and not autocasts_to_bf16():
        return "it multiplies in float32 or bfloat16 only"
    try:
        load(layers.cpu_driver.kernel, *SHARED_KERNELS)
    except KernelError as error:
        return str(error)
    return None


def lacks_gpu_kernels(layers: RecurrentLayers, driver: GpuDriver, device: torch.device, training: bool) -> str | None:
    """Why Triton's kernels cannot compute a layer, or None if they can."""
    if layers.like.dtype != torch.float32:
        return "it needs float32 parameters"
    if importlib.util.find_spec("triton") is None:
        return "no Triton"
    try:
        allowed_sources()
    except KernelError as error:
        return str(error)
    return driver.lacks(device)
