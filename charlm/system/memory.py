"""How much memory this process may still take. Imports only the standard library."""

import contextlib
import os
from collections.abc import Iterator
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


def _group_bytes(system: Path) -> Iterator[int]:
    """Linux: memory left under the limits of this process's control group (a container, say) and its parents."""
    root = system / "sys/fs/cgroup"
    with contextlib.suppress(*_UNTOLD):
        lines = (system / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = next((root / line.removeprefix("0::/") for line in lines if line.startswith("0::/")), root)
        for group in (own, *own.parents):
            if not group.is_relative_to(root):
                return
            # A group without the file, or with "max" in it, has no limit.
            with contextlib.suppress(*_UNTOLD):
                limit = int((group / "memory.max").read_text())
                used = int((group / "memory.current").read_text()) - _table(group / "memory.stat")["inactive_file"]
                yield max(0, limit - used)


def _table(file: Path) -> dict[str, int]:
    """A file with lines of a name, a number and, optionally, a unit."""
    return {line.split()[0]: int(line.split()[1]) for line in file.read_text(encoding="ascii").splitlines()}
