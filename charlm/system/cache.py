"""The cache folder: encoded texts and compiled kernels; both can be rebuilt."""

import contextlib
import functools
import os
import shutil
import tempfile
import time
from pathlib import Path

from charlm.errors import DataError
from charlm.system.console import say


def cache_dir() -> Path:
    """$CHARLM_CACHE, else charlm's folder in $XDG_CACHE_HOME or ~/.cache; DataError for a user without a home."""
    if folder := os.environ.get("CHARLM_CACHE"):
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "charlm"
    except RuntimeError as error:
        raise DataError("cache: this user has no home folder; any folder will do; name one in CHARLM_CACHE") from error


def cache_folder(name: str) -> Path:
    """The folder `name` of the cache, which may not exist yet.

    If others can write to it, they could plant code or texts: then this process uses an empty folder of its own.
    """
    folder = cache_dir() / name
    fault = folder.exists() and who_else_writes(folder)
    return _folder_instead_of(folder, fault) if fault else folder


def make_cache_folder(name: str) -> Path:
    """`cache_folder`, created if it is missing; OSError if it cannot be."""
    cache_folder(name).mkdir(mode=0o700, parents=True, exist_ok=True)
    return cache_folder(name)  # asked again: someone else may have created it in the meantime


def is_private(path: Path) -> bool:
    """Whether the file or folder belongs to this user or to root, and nobody else may write it."""
    return not who_else_writes(path)


def who_else_writes(path: Path) -> str:
    """Why others could have written the file or folder, in words; "" if they could not."""
    status = path.stat()
    if hasattr(os, "getuid") and status.st_uid not in (0, os.getuid()):
        return "it belongs to another user"
    if hasattr(os, "getuid") and status.st_mode & 0o022:
        return "others may write to it (chmod go-w changes that)"
    return ""


@functools.cache
def _folder_instead_of(folder: Path, fault: str) -> Path:
    _temporary_folders.append(tempfile.TemporaryDirectory(prefix="charlm-", ignore_cleanup_errors=True))
    private = Path(_temporary_folders[-1].name)
    say("cache", f"{folder}: not used, because {fault}; name another in CHARLM_CACHE; this process uses {private}")
    return private


_temporary_folders: list[tempfile.TemporaryDirectory[str]] = []
"""Deleted when the process ends."""


def remove_leftovers(folder: Path, pattern: str, age_s: float) -> None:
    """Remove temporary files and folders of killed processes: those older than `age_s`, longer than writing takes."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > age_s:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
