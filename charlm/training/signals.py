"""Ctrl-C, SIGTERM and SIGHUP end a run after the current step; a second Ctrl-C or SIGTERM ends the process at once."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
"""Signals that stop a run, and the exit code of each."""


@contextlib.contextmanager
def catch_signals(*, patient: bool) -> Iterator[list[str]]:
    """Collect the names of signals.

    A second signal ends the process, except SIGHUP: when a terminal is closed, the kernel and the shell each send one.
    If `patient`, none does: torchrun may send a signal that its processes have already received.
    """
    received: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {}
    for number in (signal.Signals[name] for name in SIGNALS if hasattr(signal, name)):  # Windows has no SIGHUP
        # One that the shell ignores for background jobs stays ignored. None: a handler that Python cannot restore.
        if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None):
            before[number] = handler

    def restore(*unchanged: str) -> None:
        for number, handler in before.items():
            if number.name not in unchanged:
                signal.signal(number, handler)

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(signal.Signals(number).name)
        if not patient:
            restore("SIGHUP")

    for number in before:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        restore()
