"""The cache folder: encoded texts, compiled kernels, and proofs. All can be made again, so each folder has a bound."""

import contextlib
import errno
import os
import re
import stat
import sys
import time
from pathlib import Path
from typing import BinaryIO

from platformdirs import user_cache_path

from charlm.errors import DataError
from charlm.system.files import reason_of, unlinked

BOUNDS = {"corpora": 10_000_000_000, "kernels": 100_000_000}
"""Bytes of each folder. A kernel takes 0.1 MB."""
ADVICE = "any folder with room will do; name one in CHARLM_CACHE"

_OWN_NAMES = re.compile(r"[0-9a-f]{16}-[0-9a-f]{64}.*\.bin|.+-[0-9a-f]{16}\.(so|sha256|log|proof)")
"""What charlm writes there; CHARLM_CACHE may name a folder with other files in it."""
_RECENT_S = 600
"""A file that was used so recently stays: another process may be about to open it."""


def cache_dir() -> Path:
    """$CHARLM_CACHE, else charlm's folder among the user's caches: $XDG_CACHE_HOME or ~/.cache on Linux."""
    if folder := os.environ.get("CHARLM_CACHE"):
        return Path(folder)
    try:
        return user_cache_path("charlm", appauthor=False)
    except RuntimeError as error:
        raise DataError(f"cache: this user has no home folder; {ADVICE}") from error


def cache_folder(name: str) -> Path:
    """The folder `name` of the cache, made if missing; DataError if it cannot be, or if others could write to it."""
    folder = cache_dir() / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fault = _who_else_writes(folder.lstat())
    except OSError as error:
        raise unwritable(folder, error) from error
    if fault:
        raise DataError(f"{folder}: the cache is not safe: {fault}; {ADVICE}")
    return folder


def unwritable(folder: Path, error: OSError) -> DataError:
    """The error for a folder of the cache in which nothing can be written."""
    return DataError(f"{folder}: the cache cannot be written: {reason_of(error)}; {ADVICE}")


def open_private(path: Path) -> BinaryIO:
    """Open a file of the cache, and mark it as used now; OSError if others could have written it, or it is no file."""
    file = open(path, "rb", opener=unlinked)  # noqa: SIM115
    if fault := _who_else_writes(os.fstat(file.fileno())):
        file.close()
        raise OSError(errno.EPERM, fault, str(path))
    with contextlib.suppress(OSError):  # a cache that this process may only read
        os.utime(path)
    return file


def _who_else_writes(status: os.stat_result) -> str:
    """Why others could have written a file, or what is in a folder, in words; "" if they could not."""
    if sys.platform == "win32":
        return ""
    if status.st_uid not in (0, os.getuid()):
        return "it belongs to another user"
    if stat.S_ISLNK(status.st_mode):
        return "it is a link"
    if status.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        return "others may write to it (chmod go-w changes that)"
    return ""


def limit_cache(name: str) -> None:
    """Remove the least recently used of charlm's files in a folder until it keeps its bound."""
    files = []
    for path in cache_folder(name).iterdir():
        if _OWN_NAMES.fullmatch(path.name):
            with contextlib.suppress(OSError):  # removed by another process
                status = path.lstat()
                files.append((status.st_mtime, path, status.st_size))
    excess = sum(size for _, _, size in files) - BOUNDS[name]
    for used_s, path, size in sorted(files):
        if excess <= 0 or time.time() - used_s < _RECENT_S:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            excess -= size
