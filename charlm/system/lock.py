"""Locks: one process at a time in a run's folder, and one training at a time in a process."""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from charlm.errors import RunError
from charlm.system.console import say
from charlm.system.files import unlinked

LOCK = ".lock"
_MOST = 1000
"""Characters at most that are read of what a lock's file says."""
_TEXT = 1
"""Where the text begins in the file: on Windows no other handle reads or writes the first byte of a locked one."""
_PATIENCE_S = 0.2
"""Longer than `lock_holder` holds a lock."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock during the block. If another process has it, raise a RunError that names the holder.

    The operating system releases it when the process ends, so no lock is ever stale. The file stays. On a file system
    without locks nothing is locked.
    """
    file = folder / LOCK
    with open(file, "a", opener=unlinked):
        lock = FileLock(file, fallback_to_soft=False)
    try:
        lock.acquire(timeout=_PATIENCE_S)
    except Timeout:
        raise RunError(
            f"{folder}: in use by {_holder(file) or 'another process'}; allowed: one process at a time; "
            "wait for it or stop it, or take another --run-dir"
        ) from None
    except OSError:  # some network file systems have no locks
        pass
    try:
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        with open(file, "r+b", buffering=0, opener=unlinked) as opened:
            opened.truncate(_TEXT)
            opened.seek(_TEXT)
            opened.write(f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())
        yield
    finally:
        lock.release()


def lock_holder(folder: Path) -> str | None:
    """The process that holds the folder's lock, in words; None if nobody does."""
    file = folder / LOCK
    try:
        if not file.is_file():
            return None
        with FileLock(file, timeout=0, fallback_to_soft=False):
            return None
    except Timeout:
        return _holder(file) or "another process"
    except OSError:
        return None


def _holder(file: Path) -> str:
    with open(file, "rb", buffering=0, opener=unlinked) as opened:
        opened.seek(_TEXT)
        return opened.read(_MOST).decode(errors="replace").strip()


class _Turns:
    """One block at a time in this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        if self._thread == threading.get_ident():
            raise RunError("train: called by on_log of another train(); allowed: one training after another")
        if not self._lock.acquire(blocking=False):
            say("wait", "another thread of this process is training; this training starts when that one ends")
            self._lock.acquire()
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            self._lock.release()

    def forked(self) -> None:
        """In the child: the training of a thread that is not there has ended."""
        if self._thread != threading.get_ident():
            self.__init__()


one_training = _Turns()
"""A context for a training: waits for that of another thread; RunError if this thread is training already.

Trainings share torch's random generator.
"""
if sys.platform != "win32":
    os.register_at_fork(after_in_child=one_training.forked)
