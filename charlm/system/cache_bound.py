"""How large the cache may become: each of its folders has a bound, above which the least recently used entries go."""

import contextlib
import os
import re
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from charlm.system.cache import cache_folder
from charlm.system.files import unlinked

BOUNDS = {"corpora": 10_000_000_000, "kernels": 100_000_000}
"""Bytes of each folder. A kernel takes 0.1 MB."""

_FILES = {
    "corpora": re.compile(r"([0-9a-f]{16}-[0-9a-f]{64}|unicode-names).*\.(bin|json|txt)"),
    "kernels": re.compile(r"(.+-[0-9a-f]{16})\.(so|sha256|log)"),
}
"""What charlm writes there, with the name of its entry; CHARLM_CACHE may name a folder with other files in it."""

_RECENT_S = 600
"""An entry that was used so recently stays: another process may be about to open it."""


@dataclass(frozen=True)
class Entry:
    """All files of a text or of a kernel."""

    files: list[Path]
    size_bytes: int
    used_s: float
    """When one of them was last used, in seconds since 1970."""


def use(file: BinaryIO) -> None:
    """Mark an opened file of the cache as used now. While it, or a memory map of it, is open, its entry stays.

    A map keeps the lock because it duplicates the file's descriptor.
    """
    with contextlib.suppress(OSError):  # a cache that this process may only read
        os.utime(file.fileno() if os.utime in os.supports_fd else file.name)
    if sys.platform != "win32":
        import fcntl

        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def limit_cache(name: str) -> None:
    """Remove the least recently used entries of a folder until it keeps its bound, except those in use."""
    entries = cache_entries(name, cache_folder(name))
    excess = sum(entry.size_bytes for entry in entries) - BOUNDS[name]
    for entry in sorted(entries, key=lambda entry: entry.used_s):
        if excess <= 0 or time.time() - entry.used_s < _RECENT_S:
            break
        excess -= entry.size_bytes if remove(entry) else 0


def cache_entries(name: str, folder: Path) -> list[Entry]:
    """The entries of a folder of the cache: the one of this name, or the one that is used in its place."""
    found: dict[str, list[tuple[Path, os.stat_result]]] = {}
    for path in folder.glob("*"):
        if match := _FILES[name].fullmatch(path.name):
            with contextlib.suppress(OSError):  # removed by another process
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found.setdefault(match[1], []).append((path, status))
    return [
        Entry(
            [path for path, _ in files],
            sum(status.st_size for _, status in files),
            max(status.st_mtime for _, status in files),
        )
        for files in found.values()
    ]


def remove(entry: Entry) -> bool:
    """Remove an entry unless one of its files is in use or cannot be removed; returns whether it is gone.

    Where the file system has no locks, none is removed. Windows refuses to remove what is open.
    """
    with contextlib.ExitStack() as opened:
        try:
            if sys.platform != "win32":
                import fcntl

                for path in entry.files:  # NFS locks only what is open for writing
                    file = opened.enter_context(open(path, "r+b", opener=unlinked))
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in entry.files:
                path.unlink(missing_ok=True)
        except OSError:
            return not any(path.exists() for path in entry.files)
    return True
