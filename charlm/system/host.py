"""The host: its CPU, its free memory, and how its idle threads wait. Imports only the standard library."""

import contextlib
import itertools
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_FLAGS = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "sve2", "bf16")
"""Flags of /proc/cpuinfo that decide how fast kernels are."""


def describe_cpu() -> str:
    """Model, usable cores, and the instructions that decide how fast kernels are."""
    fields = _first_core(Path("/"))
    model = fields.get("model name") or _mac_model() or platform.processor() or "unknown model"
    flags = (fields.get("flags") or fields.get("features") or "").split()
    cores, quota = f"{count_cores()} of {os.cpu_count()} cores", _quota_cpus(Path("/"))
    if quota < len(usable_cores()):
        cores += f" (the control group's CPU quota is {quota:.3g})"
    return ", ".join(filter(None, [model, cores, " ".join(flag for flag in _FLAGS if flag in flags)]))


def _first_core(system: Path) -> dict[str, str]:
    """What Linux says of the first core; empty on other systems."""
    try:
        with (system / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":") for line in itertools.takewhile(str.strip, file)]
    except OSError:
        return {}
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def torch_fault(system: Path = Path("/")) -> str:
    """Why importing torch would end this process, in words; "" if it would not. `system` is the root of its files."""
    if "avx" in _first_core(system).get("flags", "avx").split():
        return ""
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode != -signal.SIGILL:
        return ""
    return (
        "PyTorch: this CPU has no AVX, which this build of PyTorch needs; allowed: a CPU with AVX, or a build for "
        "older CPUs"
    )


def usable_cores() -> frozenset[int]:
    """The cores of this process's affinity mask; see `count_cores` for how many of them it may keep busy."""
    return frozenset(os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1))


def count_cores(system: Path = Path("/")) -> int:
    """How many cores this process may keep busy: those of its affinity mask, or fewer with a CPU quota.

    A quota of 1.5 CPUs counts as 1: threads meet at every time step, and a thread that is stopped holds up the others.
    `system` is the root of the system's files.
    """
    return max(1, int(min(len(usable_cores()), _quota_cpus(system))))


def _quota_cpus(system: Path) -> float:
    """Linux: CPU seconds per second that this process's control groups and their parents allow; else infinity."""
    quotas = [math.inf]
    for group, is_v2 in _groups("cpu", system):
        # Without a quota the first number is "max", or -1 in v1.
        with contextlib.suppress(*_UNREADABLE, ZeroDivisionError):
            if is_v2:
                quota, period = (group / "cpu.max").read_text().split()
            else:
                quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0:
                quotas.append(int(quota) / int(period))
    return min(quotas)


def limit_threads(system: Path = Path("/")) -> None:
    """Set OMP_NUM_THREADS, which torch reads when it is imported, if there is a CPU quota that torch would not see.

    Left to the user who has set it, and to a run's processes, which share the cores.
    """
    if not {"OMP_NUM_THREADS", "RANK"} & os.environ.keys() and count_cores(system) < len(usable_cores()):
        os.environ["OMP_NUM_THREADS"] = str(count_cores(system))


def _mac_model() -> str:
    if sys.platform != "darwin":
        return ""
    completed = subprocess.run(
        ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
    )
    return completed.stdout.strip()


def _free_on_windows() -> int | None:
    if sys.platform != "win32":
        return None
    import ctypes

    status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX: its own length, then memory in bytes, and what of it is free
    return status[2] if ctypes.windll.kernel32.GlobalMemoryStatusEx(status) else None


_UNREADABLE = (OSError, ValueError, LookupError)


def free_bytes(system: Path = Path("/")) -> int | None:
    """Memory that is available now; None if the system does not say. `system` is the root of its files."""
    free = list(_group_bytes(system))
    with contextlib.suppress(*_UNREADABLE):
        free.append(1024 * _table(system / "proc/meminfo")["MemAvailable:"])
    if free:
        return min(free)
    if sys.platform == "win32":
        return _free_on_windows()
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


# Version of Linux's control groups: files with limit and use, and memory.stat's name for pages that can be freed.
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("memory.max", "memory.current", "inactive_file")


def _group_bytes(system: Path) -> Iterator[int]:
    """Linux: memory left under the limits of this process's control groups (a container, say) and their parents."""
    for group, is_v2 in _groups("memory", system):
        limit_file, used_file, freeable = _V2 if is_v2 else _V1
        # A group without the file, or with "max" in it, has no limit. Without a limit, v1 names one near 2⁶³.
        with contextlib.suppress(*_UNREADABLE):
            limit_bytes = int((group / limit_file).read_text())
            used_bytes = int((group / used_file).read_text()) - _table(group / "memory.stat")[freeable]
            yield max(0, limit_bytes - used_bytes)


def _groups(controller: str, system: Path) -> Iterator[tuple[Path, bool]]:
    """Linux: folders of this process's control groups that `controller` may limit, and whether they are of version 2.

    Each from the innermost group to the root.
    """
    with contextlib.suppress(*_UNREADABLE):
        for line in (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            root = system / "sys/fs/cgroup" / (controller if controllers else "")
            innermost = root / path.lstrip("/")
            for group in (innermost, *innermost.parents):
                if not group.is_relative_to(root):
                    break
                yield group, not controllers


def _table(file: Path) -> dict[str, int]:
    """A file with lines of a name, a number and, optionally, a unit."""
    return {line.split()[0]: int(line.split()[1]) for line in file.read_text(encoding="ascii").splitlines()}


_SPINS = 2_000  # tens of microseconds
_SPINS_ON_VM = 100_000  # milliseconds: longer than the main thread works between two parallel regions


def limit_spinning(system: Path = Path("/")) -> None:
    """Set GOMP_SPINCOUNT unless the user did. torch's OpenMP reads it when torch is imported.

    By default threads spin for milliseconds. If another process keeps one of four cores busy, an LSTM then trains at
    800 characters/s, and with a short spin at 21,000; on an idle machine at 70,000 either way.
    On a virtual machine waking a sleeping core is slow: with a short spin an update of an LSTM of 384 units or an RHN
    of 224 took 1.3 to 1.5 times as long on two cores. So threads spin longer there, unless other processes are working
    now: beside those an update takes up to twice as long with a long spin.
    """
    if "GOMP_SPINCOUNT" not in os.environ:
        spins = _SPINS_ON_VM if _is_virtual(system) and not _others_work(system) else _SPINS
        os.environ["GOMP_SPINCOUNT"] = str(spins)


def _is_virtual(system: Path) -> bool:
    """True on an x86 virtual machine; other CPUs do not say."""
    return "hypervisor" in _first_core(system).get("flags", "").split()


def _others_work(system: Path) -> bool:
    """True if other processes run on this machine at each of five moments."""
    for _ in range(5):
        try:
            running = int((system / "proc/loadavg").read_text().split()[3].split("/")[0])
        except (OSError, ValueError, IndexError):
            return False
        if running <= 1:  # only this process
            return False
        time.sleep(0.002)
    return True
