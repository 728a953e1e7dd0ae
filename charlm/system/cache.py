"""The cache folder: encoded texts and compiled kernels; both can be rebuilt."""

import errno
import functools
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from platformdirs import user_cache_path

from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.files import unlinked


def cache_dir() -> Path:
    """$CHARLM_CACHE, else charlm's folder among the user's caches: $XDG_CACHE_HOME or ~/.cache on Linux."""
    if folder := os.environ.get("CHARLM_CACHE"):
        return Path(folder)
    try:
        return user_cache_path("charlm", appauthor=False)
    except RuntimeError as error:
        raise DataError("cache: this user has no home folder; any folder will do; name one in CHARLM_CACHE") from error


def cache_folder(name: str) -> Path:
    """The folder `name` of the cache, which may not exist yet.

    If others can write to it, they could plant code or texts: then this process uses an empty folder of its own.
    """
    folder = cache_dir() / name
    fault = who_else_writes(folder)
    return _folder_instead_of(folder, fault) if fault else folder


def make_cache_folder(name: str) -> Path:
    """`cache_folder`, created with its parents if they are missing, for this user alone; OSError if it cannot be."""
    _make(cache_folder(name))
    return cache_folder(name)  # asked again: someone else may have created it in the meantime


def _make(folder: Path) -> None:
    """Path.mkdir would give `mode` to the last folder only."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def open_private(path: Path) -> BinaryIO:
    """Open a file of the cache; OSError if it is a link or no file, or others could have written it."""
    file = open(path, "rb", opener=unlinked)  # noqa: SIM115
    status = os.fstat(file.fileno())
    if sys.platform != "win32" and _fault(status):
        file.close()
        raise OSError(errno.EPERM, "others could have written it", str(path))
    return file


def who_else_writes(folder: Path, links: int = 0) -> str:
    """Why others could have written the folder, or could put another in its place, in words; "" if they could not.

    A parent may be a link that this user or root has made: its target is checked like the other parents, after `links`
    links on the way. In a parent with the sticky bit, such as /tmp, others cannot replace files that they do not own.
    A missing folder is safe.
    """
    if sys.platform == "win32":
        return ""
    folder = folder.absolute()
    for entry in (*reversed(folder.parents), folder):
        is_parent = entry != folder or links > 0
        try:
            status = entry.lstat()
        except OSError:
            return ""
        if stat.S_ISLNK(status.st_mode) and is_parent and links < 40 and _is_trusted(status.st_uid):
            fault = who_else_writes(entry.parent / entry.readlink(), links + 1)
        else:
            fault = _fault(status, is_parent=is_parent).format(entry if is_parent else "it")
        if fault:
            return fault
    return ""


def _fault(status: os.stat_result, *, is_parent: bool = False) -> str:
    """Why others could have written a file or folder, or may replace what is in it, with {} for its name."""
    if not _is_trusted(status.st_uid):
        return "{} belongs to another user"
    if stat.S_ISLNK(status.st_mode):
        return "{} is a link"
    others = stat.S_IWOTH if is_parent and _is_own_group(status.st_gid) else stat.S_IWOTH | stat.S_IWGRP
    if status.st_mode & others and not (is_parent and status.st_mode & stat.S_ISVTX):
        return "others may write to {} (chmod go-w changes that)"
    return ""


def _is_trusted(user: int) -> bool:
    """Whether a user is this one or root; the owner of / is root, also where a container shows another number."""
    return sys.platform == "win32" or user in (0, os.getuid(), Path("/").stat().st_uid)


@functools.cache
def _is_own_group(group: int) -> bool:
    """Whether only this user is in the group, which then has the user's name: many systems let it write by default."""
    if sys.platform == "win32":
        return False
    try:
        import grp
        import pwd

        user, entry = pwd.getpwuid(os.getuid()).pw_name, grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    return entry.gr_name == user and set(entry.gr_mem) <= {user}


@functools.cache
def _folder_instead_of(folder: Path, fault: str) -> Path:
    _temporary_folders.append(tempfile.TemporaryDirectory(prefix="charlm-", ignore_cleanup_errors=True))
    private = Path(_temporary_folders[-1].name)
    say("cache", f"{folder}: not used, because {fault}; name another in CHARLM_CACHE; this process uses {private}")
    return private


_temporary_folders: list[tempfile.TemporaryDirectory[str]] = []
"""Deleted when the process ends."""
