"""charlm doctor."""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from charlm import __version__
from charlm.cli import usage
from charlm.cli.common import print_json, print_table
from charlm.errors import DeviceError
from charlm.system.cache import cache_dir, who_else_writes
from charlm.system.files import folder_bytes, nearest_existing
from charlm.system.formatting import format_bytes
from charlm.system.host import describe_cpu

_PACKAGES = ("numpy", "pydantic", "pyyaml", "safetensors", "tensorboard", "tqdm", "typer")


def doctor(device: usage.Device = "auto", json: usage.Json = False) -> None:
    """Describe this machine and installation for a bug report.

    Says what is missing and what to do about it. Compiles the CPU kernels unless they are in the cache.

    \b
    Example:
      charlm doctor --json
    """
    checks: dict[str, Callable[[], Any]] = {
        "versions": _versions,
        "packages": lambda: {name: _version(name) for name in _PACKAGES},
        "system": lambda: " ".join(
            filter(None, [platform.system(), platform.release(), platform.machine(), *platform.libc_ver()])
        ),
        "cpu": describe_cpu,
        "device": lambda: _device(device),
        "precision": lambda: _precision(device),
        "threads": _threads,
        "backends": lambda: _backends(device),
        "kernels": _kernels,
        "compiler": _compiler,
        "cache": _cache,
        "free": _free,
    }
    report: dict[str, Any] = {}
    for name, check in checks.items():
        try:
            report[name] = check()
        except Exception as error:  # the report matters more than any entry of it
            report[name] = f"unknown: {' '.join(str(error).split()) or type(error).__name__}"
    if json:
        print_json(report)
        return
    rows = {}
    for name, entry in report.items():
        if not isinstance(entry, dict):
            rows[name] = entry
        elif name == "backends":  # kinds that the same backend computes share a line
            for backend in dict.fromkeys(entry.values()):
                rows[", ".join(kind for kind in entry if entry[kind] == backend)] = backend
        else:
            rows[name] = ", ".join(f"{key} {text}" for key, text in entry.items())
    print_table(rows)


def _versions() -> dict[str, str]:
    try:
        import torch

        pytorch = f"{torch.__version__} (CUDA {torch.version.cuda or 'not built in'})"
    except ImportError as error:
        pytorch = f"cannot be imported ({error}); reinstall torch"
    return {"charlm": __version__, "Python": platform.python_version(), "PyTorch": pytorch}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing; reinstall charlm"


def _device(name: str) -> str:
    import torch

    from charlm.system.device import describe_device, resolve_device

    try:
        device = resolve_device(name)
    except DeviceError as error:
        return f"none: {error}"
    description, cuda = describe_device(device), torch.version.cuda
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return f"{description}, {format_bytes(free)} of {format_bytes(total)} free"
    if cuda is None:
        return f"{description}; no GPU: this PyTorch is built without CUDA; for a GPU install one built with it"
    if not torch.cuda.is_available():
        return f"{description}; PyTorch (CUDA {cuda}) sees no GPU; for one, check its driver (nvidia-smi)"
    return description


def _precision(name: str) -> str:
    from charlm.native.precision import choose_precision
    from charlm.system.device import resolve_device

    precision, reason = choose_precision("auto", resolve_device(name))
    return f"auto takes {precision}; {reason}"


def _threads() -> dict[str, str]:
    import torch

    variables = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT") if name in os.environ}
    return {"PyTorch": str(torch.get_num_threads())} | variables


def _backends(name: str) -> dict[str, str]:
    """Kind → the backend that computes it, and why not a faster one."""
    from charlm.layers import select_backends
    from charlm.system.device import resolve_device

    selected = select_backends(resolve_device(name))
    return {kind: selection.description.removeprefix(f"{kind}: ") for kind, selection in selected.items()}


def _kernels() -> str:
    """Of the CPU; `_backends` has loaded them."""
    from charlm.native.build import SHIPPED, used_kernels

    if (used := used_kernels()) not in ("", "compiled"):
        return f"came with charlm, for {used}"
    came = "those that came with charlm were not used (they need AVX2 or NEON)"
    reason = came if SHIPPED.is_dir() else "none came with charlm"
    if allowed := os.environ.get("CHARLM_KERNELS"):
        reason = f"CHARLM_KERNELS is {allowed}"
    return f"{used or 'none'}; {reason}"


def _compiler() -> str:
    from charlm.native.compiler import KernelError, find_compiler

    try:
        command = find_compiler()
    except KernelError as error:
        return f"none: {error}"
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{shlex.join(command)} cannot be run ({error}); install g++ or clang++, or fix or unset CXX"
    first_line = done.stdout.partition("\n")[0] or f"exit code {done.returncode}"
    return f"{first_line} ({shutil.which(command[0]) or command[0]})"


def _cache() -> str:
    folder = cache_dir()
    sizes = []
    for name in ("kernels", "corpora"):
        fault = who_else_writes(folder / name)
        unused = f" not used, because {fault}" if fault else ""
        sizes.append(f"{name} {format_bytes(folder_bytes(folder / name))}{unused}")
    writable = os.access(nearest_existing(folder), os.W_OK)
    hint = "" if writable else "; cannot be written; name another folder in CHARLM_CACHE"
    return f"{folder}: {', '.join(sizes)}{hint}"


def _free() -> str:
    import torch

    from charlm.system.device import available_bytes

    memory, disk = available_bytes(torch.device("cpu")), shutil.disk_usage(Path.cwd()).free
    return f"memory {'unknown' if memory is None else format_bytes(memory)}, disk {format_bytes(disk)} in {Path.cwd()}"
