"""Child processes: limited in memory and time, and none outlives the process that started it."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

_MOST_S = 300
_MOST_BYTES = 4_000_000_000
"""Of address space, for each process. g++ 12 takes up to 0.5 GB for a kernel."""

# Leads a process group of its own. A watcher in it waits for the end of stdin, a pipe that only the parent holds open.
_LAUNCH = """
exec 3<&0 </dev/null
{ read -r end <&3; kill -9 0; } >/dev/null 2>&1 &
exec 3<&-
ulimit -v "$1" 2>/dev/null
ulimit -t "$2" 2>/dev/null
shift 2
"$@"
code=$?
kill -9 $!
wait
exit $code
"""
_LAUNCHER = ["/bin/sh", "-c", _LAUNCH, "sh", str(_MOST_BYTES // 1024), str(_MOST_S)] if sys.platform != "win32" else []

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a command to its end, with nothing on stdin. ChildProcessError if it cannot start, or takes too long."""


@contextlib.contextmanager
def children() -> Iterator[Run]:
    """A function that runs commands, in any thread.

    When the block is left or this process dies, even by SIGKILL, each command and all its children are killed. On
    Windows, which has no process groups, only commands that take too long are killed.
    """
    reading, writing = os.pipe()
    try:
        yield functools.partial(_run, reading)
    finally:
        os.close(writing)
        os.close(reading)


def _run(parent: int, command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        process = subprocess.Popen(
            [*_LAUNCHER, *command],
            stdin=parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ChildProcessError(f"{command[0]} cannot be started: {error.strerror}") from error
    with process:
        try:
            output, errors = process.communicate(timeout=_MOST_S)
        except subprocess.TimeoutExpired:
            raise ChildProcessError(f"{command[0]} took longer than {_MOST_S} s") from None
        finally:
            if process.returncode is None:
                _kill(process)
    return subprocess.CompletedProcess(command, process.wait(), output, errors)


def _kill(process: "subprocess.Popen[str]") -> None:
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
