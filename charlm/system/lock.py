"""Locks: one process at a time in a run's folder, and one training at a time in a process."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from charlm.errors import RunError
from charlm.system.console import say
from charlm.system.files import unlinked

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = ".lock"
_MOST = 1000
"""Characters at most that are read of what a lock's file says."""


@contextlib.contextmanager
def locked(folder: Path, name: str = LOCK, *, wait: bool = False) -> Iterator[None]:
    """Hold the folder's lock, or the one called `name`, during the block.

    If another process has it, wait for it, or raise a RunError that names the holder.

    The operating system releases it when the process ends, so no lock is ever stale. The file stays. Without locks
    (Windows, some network file systems) nothing is locked.
    """
    if fcntl is None:
        yield
        return
    with open(folder / name, "a+", encoding="utf-8", opener=unlinked) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read(_MOST).strip() or "another process"
            raise RunError(
                f"{folder}: in use by {holder}; allowed: one process at a time; "
                "wait for it or stop it, or take another --run-dir"
            ) from None
        except OSError:  # some network file systems have no locks
            pass
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        file.flush()
        yield


def lock_holder(folder: Path) -> str | None:
    """The process that holds the folder's lock, in words; None if nobody does. Takes no lock itself.

    Linux lists its locks. Elsewhere the process that the file names counts as the holder while it is alive.
    """
    try:
        with open(folder / LOCK, encoding="utf-8", errors="replace", opener=unlinked) as file:
            status, named = os.fstat(file.fileno()), file.read(_MOST).strip()
    except OSError:
        return None
    words = named.split()
    pid = words[1] if named.startswith("process ") and len(words) > 3 and words[1].isdecimal() else ""
    try:
        listed = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        held = bool(pid) and words[3] == socket.gethostname() and _is_alive(int(pid))
    else:
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        # Some file systems list a device other than stat's: then inode and process must both match.
        held = any(
            fields[5] == place or (fields[4] == pid and fields[5].endswith(f":{status.st_ino}"))
            for fields in map(str.split, listed)
            if len(fields) > 5 and fields[1] == "FLOCK"
        )
    return (named or "another process") if held else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


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
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=one_training.forked)
