"""How much memory this process may still take. Imports only the standard library."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def free_bytes(system: Path = Path("/")) -> int | None:
    """Memory that is available now; None if the system does not say. `system` is the root of its files."""
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
