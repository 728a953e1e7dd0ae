"""The host: its CPU, its free memory, and how its idle threads wait."""

import contextlib
import itertools
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from charlm.system.formatting import format_bytes

_ROOT = Path("/")
"""Of the system's files; tests have their own."""
_FLAGS = ("avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "sve2", "bf16")
"""Flags of /proc/cpuinfo that decide how fast kernels are."""
_UNREADABLE = (OSError, ValueError, LookupError, ZeroDivisionError)
_STATUS = "proc/self/status"


def describe_cpu() -> str:
    """Model, usable cores, and the instructions that decide how fast kernels are."""
    fields = _first_core()
    model = fields.get("model name") or platform.processor() or "unknown model"
    flags = (fields.get("flags") or fields.get("features") or "").split()
    cores = f"{count_cores()} of {os.cpu_count()} cores"
    return ", ".join(filter(None, [model, cores, " ".join(flag for flag in _FLAGS if flag in flags)]))


def _first_core() -> dict[str, str]:
    """What Linux says of the first core; empty on other systems."""
    with contextlib.suppress(OSError), (_ROOT / "proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        lines = [line.partition(":") for line in itertools.takewhile(str.strip, file)]
        return {name.strip().lower(): value.strip() for name, _, value in lines}
    return {}


def _usable_cores() -> int:
    """How many cores are in this process's affinity mask; `count_cores` says how many of them it may keep busy."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def count_cores() -> int:
    """How many cores this process may keep busy. A quota of 1.5 CPUs counts as 1: threads meet at every time step."""
    cores: list[float] = [_usable_cores()]
    for group in _groups():
        with contextlib.suppress(*_UNREADABLE):  # "max" in place of a quota
            quota, period = map(int, (group / "cpu.max").read_text().split())
            cores.append(quota / period)
    return max(1, int(min(cores)))


def limit_threads() -> None:
    """Set OMP_NUM_THREADS, which torch reads at import, under a CPU quota, which torch would not see.

    NumPy's OpenBLAS gets one thread: where it cannot start threads, it sends this process a SIGINT.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not {"OMP_NUM_THREADS", "RANK"} & os.environ.keys() and (cores := count_cores()) < _usable_cores():
        os.environ["OMP_NUM_THREADS"] = str(cores)


def free_bytes() -> int | None:
    """Memory that this process may still take, also under limits; None if the system does not say."""
    unused, space = _unused_bytes(), _address_space()
    unmapped = space[1] if space else None
    return min((free for free in (unused, unmapped) if free is not None), default=None)


def _unused_bytes() -> int | None:
    """Memory that is available now, also under the limits of control groups; None if the system does not say."""
    free = []
    for group in _groups():
        with contextlib.suppress(*_UNREADABLE):  # "max" in place of a limit
            limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
            free.append(max(0, limit - used + _number(group / "memory.stat", "inactive_file")))
    with contextlib.suppress(*_UNREADABLE):
        free.append(1024 * _number(_ROOT / "proc/meminfo", "MemAvailable:"))
    if not free and sys.platform != "win32":
        with contextlib.suppress(*_UNREADABLE):
            free.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(free, default=None)


def _groups() -> Iterator[Path]:
    """The folders of this process's control group and its parents, which limit containers and batch jobs; version 2."""
    root = _ROOT / "sys/fs/cgroup"
    with contextlib.suppress(*_UNREADABLE):
        for line in (_ROOT / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            if line.startswith("0::"):
                innermost = root / line.removeprefix("0::").lstrip("/")
                yield from (group for group in (innermost, *innermost.parents) if group.is_relative_to(root))


def _number(file: Path, name: str) -> int:
    """The number after a name at the start of a line; LookupError if there is none."""
    found = re.search(rf"^{name}\s+(\d+)\b", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    if found is None:
        raise LookupError(name)
    return int(found[1])


def process_peak_bytes() -> int | None:
    """The most memory that this process has held at a time; None if the system does not say."""
    # On Linux, ru_maxrss begins with the peak of the process that started this one.
    with contextlib.suppress(*_UNREADABLE):
        return 1024 * _number(_ROOT / _STATUS, "VmHWM:")
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None


# The limit of the address space (`ulimit -v`). A process maps more than it uses: libraries, a stack for each thread.


def _address_space() -> tuple[int, int] | None:
    """Bytes that this process may map, and what it may still map of them; None without a limit."""
    with contextlib.suppress(*_UNREADABLE):  # "unlimited" in place of a limit
        limit = _number(_ROOT / "proc/self/limits", "Max address space")
        return limit, max(0, limit - 1024 * _number(_ROOT / _STATUS, "VmSize:"))
    return None


def raise_limit_or(advice: str) -> str:
    """Advice to a process that is short of memory: first to raise this limit, if it ends before the memory does."""
    unused, space = _unused_bytes(), _address_space()
    if space is None:
        return advice
    limit, unmapped = space
    if unused is not None and unmapped > unused:
        return advice
    return f"raise the limit of {format_bytes(limit)} of address space (`ulimit -v`), or {advice}"


_SPINS = 2_000  # tens of microseconds
_SPINS_ON_VM = 100_000  # milliseconds: longer than the main thread works between two parallel regions


def limit_spinning() -> None:
    """Set GOMP_SPINCOUNT unless the user did. torch's OpenMP reads it when torch is imported.

    By default threads spin for milliseconds. With another process on one of four cores, an LSTM then trains at 800
    characters/s, but at 21,000 with a short spin. On a virtual machine waking a sleeping core is slow: a short spin
    made an update 1.3 to 1.5 times as long on two cores. So threads spin longer there, unless other processes are busy.
    """
    if "GOMP_SPINCOUNT" not in os.environ:
        is_virtual = "hypervisor" in _first_core().get("flags", "").split()  # only x86 says
        os.environ["GOMP_SPINCOUNT"] = str(_SPINS_ON_VM if is_virtual and not _others_work() else _SPINS)


def _others_work() -> bool:
    """True if other processes run on this machine at each of five moments."""
    for _ in range(5):
        try:
            running = int((_ROOT / "proc/loadavg").read_text().split()[3].split("/")[0])
        except _UNREADABLE:
            return False
        if running <= 1:  # only this process
            return False
        time.sleep(0.002)
    return True
