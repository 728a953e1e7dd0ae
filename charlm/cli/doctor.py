"""charlm doctor."""

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from charlm import __version__
from charlm.cli.common import DeviceOption, Json, print_json, print_table
from charlm.system.cpu import describe_cpu
from charlm.system.formatting import format_bytes

_PACKAGES = ("numpy", "pydantic", "pyyaml", "safetensors", "tensorboard", "tqdm", "typer")


def doctor(device: DeviceOption = "auto", json: Json = False) -> None:
    """Describe this machine and installation for a bug report.

    Says what is missing and what to do about it. Compiles the CPU kernels unless they are in the cache.

    \b
    Examples:
      charlm doctor
      charlm doctor --json
    """
    checks: dict[str, Callable[[], Any]] = {
        "versions": _versions,
        "packages": _packages,
        "system": _system,
        "cpu": describe_cpu,
        "device": lambda: _device(device),
        "precision": lambda: _precision(device),
        "threads": _threads,
        "backends": lambda: _backends(device),
        "compiler": _compiler,
        "cache": _cache,
        "free": _free,
    }
    report = {name: _tried(check) for name, check in checks.items()}
    if json:
        print_json(report)
    else:
        print_table(_lines(report))


def _tried(check: Callable[[], Any]) -> Any:
    """The result of a check, or why there is none."""
    try:
        return check()
    except Exception as error:  # the report matters more than any part of it
        return f"unknown: {' '.join(str(error).split()) or type(error).__name__}"


def _lines(report: dict[str, Any]) -> dict[str, str]:
    """The report as a table; kinds that the same backend computes share a line."""
    rows = {}
    for name, found in report.items():
        if name == "backends" and isinstance(found, dict):
            kinds: dict[str, list[str]] = {}
            for kind, backend in found.items():
                kinds.setdefault(backend, []).append(kind)
            rows |= {", ".join(same): backend for backend, same in kinds.items()}
        elif isinstance(found, dict):
            rows[name] = ", ".join(f"{part} {text}" for part, text in found.items())
        else:
            rows[name] = found
    return rows


def _versions() -> dict[str, str]:
    return {"charlm": __version__, "Python": platform.python_version(), "PyTorch": _tried(_torch_version)}


def _torch_version() -> str:
    try:
        import torch
    except ImportError as error:
        return f"cannot be imported ({error}); reinstall torch"
    return f"{torch.__version__} (CUDA {torch.version.cuda or 'not built in'})"


def _packages() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    def of(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "missing; reinstall charlm"

    return {name: of(name) for name in _PACKAGES}


def _system() -> str:
    library = " ".join(platform.libc_ver())
    return " ".join(filter(None, [platform.system(), platform.release(), platform.machine(), library]))


def _device(name: str) -> str:
    import torch

    from charlm.errors import DeviceError
    from charlm.system.device import describe_device, resolve_device

    try:
        device = resolve_device(name)
    except DeviceError as error:
        return f"none: {error}"
    described = describe_device(device)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return f"{described}, {format_bytes(free)} of {format_bytes(total)} free"
    if torch.version.cuda is None:
        return f"{described}; no GPU: this PyTorch is built without CUDA; for a GPU install one built with it"
    if not torch.cuda.is_available():
        return f"{described}; PyTorch (CUDA {torch.version.cuda}) sees no GPU; for one, check its driver (nvidia-smi)"
    return described


def _precision(name: str) -> str:
    from charlm.native.precision import choose_precision
    from charlm.system.device import resolve_device

    taken, reason = choose_precision("auto", resolve_device(name))
    return f"auto takes {taken}; {reason}"


def _threads() -> dict[str, str]:
    import torch

    found = {"PyTorch": str(torch.get_num_threads())}
    return found | {name: os.environ[name] for name in ("OMP_NUM_THREADS", "GOMP_SPINCOUNT") if name in os.environ}


def _backends(name: str) -> dict[str, str]:
    """Kind → the backend that computes it, and why not a faster one."""
    from charlm.layers import select_backends
    from charlm.system.device import resolve_device

    selected = select_backends(resolve_device(name))
    return {kind: selection.description.removeprefix(f"{kind}: ") for kind, selection in selected.items()}


def _compiler() -> str:
    from charlm.native.build import KernelError, find_compiler

    try:
        command = find_compiler()
    except KernelError as error:
        return f"none: {error}"
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{shlex.join(command)} cannot be run ({error}); install g++ or clang++, or fix or unset CXX"
    version = done.stdout.partition("\n")[0] or f"exit code {done.returncode}"
    return f"{version} ({shutil.which(command[0]) or command[0]})"


def _cache() -> str:
    from charlm.system.cache import cache_dir, who_else_writes
    from charlm.system.files import nearest_existing

    folder = cache_dir()

    def described(part: Path) -> str:
        fault = who_else_writes(part)
        return f"{part.name} {format_bytes(_size(part))}{f' not used, because {fault}' if fault else ''}"

    sizes = ", ".join(described(folder / name) for name in ("kernels", "corpora"))
    writable = os.access(nearest_existing(folder), os.W_OK)
    return f"{folder}: {sizes}{'' if writable else '; cannot be written; name another folder in CHARLM_CACHE'}"


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("**/*") if file.is_file())


def _free() -> str:
    disk = format_bytes(shutil.disk_usage(Path.cwd()).free)
    return f"memory {_tried(_memory)}, disk {disk} in {Path.cwd()}"


def _memory() -> str:
    import torch

    from charlm.training.memory import available_bytes

    memory = available_bytes(torch.device("cpu"))
    return "unknown" if memory is None else format_bytes(memory)
