"""How much memory this process may still take. Imports only the standard library."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

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
            own = system / root / path.lstrip("/")
            for group in (own, *own.parents):
                if not group.is_relative_to(system / root):
                    break
                # A group without the file, or with "max" in it, has no limit. Without a limit, v1 names one near 2⁶³.
                with contextlib.suppress(*_UNREADABLE):
                    limit = int((group / limit_file).read_text())
                    used = int((group / used_file).read_text()) - _table(group / "memory.stat")[freeable]
                    yield max(0, limit - used)


def _table(file: Path) -> dict[str, int]:
    """A file with lines of a name, a number and, optionally, a unit."""
    return {line.split()[0]: int(line.split()[1]) for line in file.read_text(encoding="ascii").splitlines()}
