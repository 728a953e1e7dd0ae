"""Locks: one process at a time in a run's folder, and one training at a time in a process."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from charlm.errors import RunError
from charlm.system.files import unlinked

LOCK = ".lock"
_PATIENCE_S = 0.2
"""Longer than `is_locked` holds a lock."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock during the block; RunError if another process has it.

    The operating system releases it when the process ends, so no lock is ever stale. The file stays. On a file system
    without locks nothing is locked.
    """
    with open(folder / LOCK, "a", opener=unlinked):
        lock = FileLock(folder / LOCK, fallback_to_soft=False)
    try:
        lock.acquire(timeout=_PATIENCE_S)
    except Timeout:
        raise RunError(
            f"{folder}: in use by another process; allowed: one process at a time; wait for it or stop it, or take "
            "another --run-dir"
        ) from None
    except OSError:  # some network file systems have no locks
        pass
    try:
        yield
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process holds the folder's lock."""
    file = folder / LOCK
    try:
        if file.is_file():
            with FileLock(file, timeout=0, fallback_to_soft=False):
                pass
    except Timeout:
        return True
    except OSError:
        pass
    return False


_lock = threading.RLock()
_is_training = False


def _train_anew() -> None:
    """In a forked child: the training of a thread that is not there has ended."""
    global _lock, _is_training
    _lock, _is_training = threading.RLock(), False


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_train_anew)


@contextlib.contextmanager
def one_training() -> Iterator[None]:
    """A training: waits for that of another thread, because both would share torch's random generator.

    RunError if this thread is training already.
    """
    global _is_training
    with _lock:
        if _is_training:
            raise RunError("train: called by on_log of another train(); allowed: one training after another")
        _is_training = True
        try:
            yield
        finally:
            _is_training = False
