"""The host: its CPU, its free memory, and how its idle threads wait. Imports only the standard library."""

import contextlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_FLAGS = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "sve2", "bf16")
"""Flags of /proc/cpuinfo that decide how fast kernels are."""


def describe_cpu() -> str:
    """Model, usable cores, and the instructions that decide how fast kernels are."""
    fields = {}
    if (file := Path("/proc/cpuinfo")).is_file():
        lines = file.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0].splitlines()
        fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    model = fields.get("model name") or _mac_model() or platform.processor() or "unknown model"
    flags = (fields.get("flags") or fields.get("features") or "").split()
    cores = f"{len(usable_cores())} of {os.cpu_count()} cores"
    return ", ".join(filter(None, [model, cores, " ".join(flag for flag in _FLAGS if flag in flags)]))


def usable_cores() -> frozenset[int]:
    """The cores that this process may use."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def _mac_model() -> str:
    if sys.platform != "darwin":
        return ""
    completed = subprocess.run(
        ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
    )
    return completed.stdout.strip()


_UNREADABLE = (OSError, ValueError, LookupError)


def free_bytes(system: Path = Path("/")) -> int | None:
    """Memory that is available now; None if the system does not say. `system` is the root of its files."""
    free = list(_group_bytes(system))
    with contextlib.suppress(*_UNREADABLE):
        free.append(1024 * _table(system / "proc/meminfo")["MemAvailable:"])
    if free:
        return min(free)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


# Version of Linux's control groups: root, files with limit and use, and memory.stat's name for pages that can be freed.
_V1 = ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def _group_bytes(system: Path) -> Iterator[int]:
    """Linux: memory left under the limits of this process's control groups (a container, say) and their parents."""
    with contextlib.suppress(*_UNREADABLE):
        for line in (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, limit_file, used_file, freeable = _V1 if controllers else _V2
            innermost = system / root / path.lstrip("/")
            for group in (innermost, *innermost.parents):
                if not group.is_relative_to(system / root):
                    break
                # A group without the file, or with "max" in it, has no limit. Without a limit, v1 names one near 2⁶³.
                with contextlib.suppress(*_UNREADABLE):
                    limit_bytes = int((group / limit_file).read_text())
                    used_bytes = int((group / used_file).read_text()) - _table(group / "memory.stat")[freeable]
                    yield max(0, limit_bytes - used_bytes)


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
    try:
        return " hypervisor " in (system / "proc/cpuinfo").read_text()
    except (OSError, ValueError):
        return False


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
