"""charlm doctor."""

import functools
import os
import platform
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import print_json, print_table
from charlm.system.cache import BOUNDS, cache_dir, cache_folder
from charlm.system.formatting import format_bytes
from charlm.system.host import describe_cpu, free_bytes
from charlm.version import __version__

_PACKAGES = ("torch", "numpy", "pydantic", "pyyaml", "safetensors", "tensorboard", "tqdm", "typer")
_VARIABLES = ("CHARLM_CACHE", "CHARLM_GRAPHS", "CHARLM_KERNELS", "CXX", "OMP_NUM_THREADS", "GOMP_SPINCOUNT")

Kernels = Annotated[
    bool,
    typer.Option("--kernels", help="Also show what computes each kind; compiles missing kernels, and proves a GPU's."),
]


def doctor(kernels: Kernels = False, device: usage.Device = "auto", json: usage.Json = False) -> None:
    """Describe this machine and installation for a bug report. Each line is printed as soon as it is known.

    \b
    Examples:
      charlm doctor
      charlm doctor --kernels --json
    """
    system = platform.system(), platform.release(), platform.machine(), *platform.libc_ver()
    facts: dict[str, Callable[[], str]] = {
        "charlm": lambda: f"{__version__}, Python {platform.python_version()}",
        "packages": lambda: ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
        "system": lambda: " ".join(filter(None, system)),
        "cpu": describe_cpu,
        "memory": lambda: f"{format_bytes(free_bytes() or 0)} free",
        "disk": lambda: f"{format_bytes(shutil.disk_usage('.').free)} free in {Path.cwd()}",
        "compiler": _compiler,
        "cache": _cache,
        "variables": lambda: ", ".join(f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ),
        "device": lambda: _device(device),
    }
    if kernels:
        from charlm.cells import CELLS

        backends = {kind: functools.partial(_backend, kind, device) for kind in CELLS}
        facts |= {"precision": lambda: _precision(device), **backends, "kernels": _kernels}
    report = {}
    for name, find in facts.items():
        try:
            report[name] = find()
        except Exception as error:  # the report matters more than any entry of it
            report[name] = f"unknown: {' '.join(str(error).split()) or type(error).__name__}"
        if not json:
            print_table({name: report[name]}, names=facts)
    if json:
        print_json(report)


def _compiler() -> str:
    from charlm.native.compiler import find_compiler

    command = find_compiler()[0]
    return shutil.which(command) or command


def _cache() -> str:
    for name in BOUNDS:
        cache_folder(name)  # DataError if it is not safe, or cannot be written
    return str(cache_dir())


def _device(name: str) -> str:
    import torch

    from charlm.system.device import describe_device, resolve_device

    device, cuda = resolve_device(name), torch.version.cuda
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return f"{describe_device(device)}, {format_bytes(free)} of {format_bytes(total)} free"
    reason = f"this PyTorch (CUDA {cuda}) sees no GPU" if cuda else "this PyTorch is built without CUDA"
    return f"{describe_device(device)}; no GPU: {reason}"


def _precision(name: str) -> str:
    from charlm.native.precision import choose_precision
    from charlm.system.device import resolve_device

    precision, reason = choose_precision("auto", resolve_device(name))
    return f"auto takes {precision}; {reason}"


def _backend(kind: str, name: str) -> str:
    """What computes a kind of cell, and why nothing faster does; where no loop of charlm does, also of records."""
    from charlm.layers import select_backend
    from charlm.native.precision import choose_precision
    from charlm.system.device import autocast, prepare_device, resolve_device

    device = resolve_device(name)
    precision, _ = choose_precision("auto", device)
    prepare_device(device, precision)
    with autocast(device, precision):
        selection = select_backend(kind, device)
        if selection.backend.driver or device.type == "cpu":
            return selection.way
        return f"{selection.way}; in models of records: {select_backend(kind, device, resets=True).way}"


def _kernels() -> str:
    """Where the kernels of the CPU that `_backend` has loaded came from."""
    from charlm.native.loading import used_kernels

    used = used_kernels()
    return used if used in ("", "compiled") else f"came with charlm, for {used}"
