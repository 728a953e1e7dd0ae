"""One process at a time in a run's folder."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from charlm.errors import RunError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock in the block; RunError, which names the process that holds it, where another does.

    The operating system frees it with the process, however that ends: no lock is ever stale. The file stays. Where the
    system or the file system knows no locks, nothing is locked.
    """
    if fcntl is None:
        yield
        return
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise RunError(
                f"{folder}: in use by {holder}; allowed: one process at a time; "
                "wait for it or stop it, or take another --run-dir"
            ) from None
        except OSError:  # a network's file system may have none
            pass
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        file.flush()
        yield
