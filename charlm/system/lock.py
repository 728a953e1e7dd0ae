"""Locks: one process at a time in a run's folder, and one training at a time in the threads of a process."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from charlm.errors import RunError
from charlm.system.files import regular, unlinked

one_training = threading.RLock()
"""Held by a training, because trainings in several threads would share torch's random generator."""


def _train_anew() -> None:
    """In a forked child: the thread that trained is not there."""
    global one_training
    one_training = threading.RLock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_train_anew)

LOCK = ".lock"
_PATIENCE_S = 0.2
"""Longer than `is_locked` holds a lock."""
_held: dict[Path, BinaryIO] = {}
"""The lock file of each folder that this process holds."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock during the block; RunError if another process has it.

    The system releases it when the process ends. On a file system without locks nothing is locked.
    """
    file = _acquired(folder)
    if file is None:
        allowed = "allowed: one process at a time; wait for it or stop it, or take another --run-dir"
        raise RunError(f"{folder}: in use by another process; {allowed}")
    _held[folder] = file
    try:
        yield
    finally:
        _held.pop(folder).close()


def holds(folder: Path) -> bool:
    """Whether this process still keeps others out. A lock file that is gone is made again if nobody was quicker."""
    if (folder / LOCK).exists():
        return _is_in_place(_held[folder], folder)
    file = _acquired(folder)
    if file is None:
        return False
    _held[folder].close()
    _held[folder] = file
    return True


def is_locked(folder: Path) -> bool:
    """Whether a process holds the folder's lock."""
    with contextlib.suppress(OSError), open(folder / LOCK, "rb", opener=regular) as file:
        return not _lock_file(file, shared=True)
    return False


def _acquired(folder: Path) -> BinaryIO | None:
    """The folder's lock file, made if it is missing, and locked; None if another process has it."""
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        file = open(folder / LOCK, "ab", opener=unlinked)  # noqa: SIM115
        if _lock_file(file) and _is_in_place(file, folder):
            return file
        file.close()
        if time.monotonic() > until_s:
            return None
        time.sleep(_PATIENCE_S / 10)


def _is_in_place(file: BinaryIO, folder: Path) -> bool:
    """Whether an open file is the one that others find."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), (folder / LOCK).lstat())
    return False


def _lock_file(file: BinaryIO, *, shared: bool = False) -> bool:
    """Lock an open file until it is closed; False if another process has locked it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # some network file systems have no locks
        pass
    return True
