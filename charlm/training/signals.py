"""Signals end a run after the current step; a second Ctrl-C, SIGTERM or SIGQUIT ends the process at once."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_ENDING = ("SIGINT", "SIGTERM", "SIGQUIT")
_WARNING = ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU")
"""They may come again while the run is saved: the kernel and the shell each send a SIGHUP when a terminal is closed,
and the kernel sends a SIGXCPU every second. Batch systems send the others before the time of a job is over."""
SIGNALS = {name: 128 + getattr(signal, name) for name in (*_ENDING, *_WARNING) if hasattr(signal, name)}
"""Signals that stop a run, and the exit code of each. Windows has two of them."""


@contextlib.contextmanager
def catch_signals(*, patient: bool) -> Iterator[tuple[list[str], Callable[[], None]]]:
    """Collect the names of signals; and a function after which a second one ends the process even in a call that hangs.

    If `patient`, none ends it: torchrun may send a signal that its processes have already received.
    """
    received: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield received, lambda: None
        return
    before = {}
    for number in (signal.Signals[name] for name in SIGNALS):
        # One that the shell ignores for background jobs stays ignored. None: a handler that Python cannot restore.
        if (handler := signal.getsignal(number)) not in (signal.SIG_IGN, None):
            before[number] = handler

    def restore(*names: str) -> None:
        for number, handler in before.items():
            if number.name in names:
                signal.signal(number, handler)

    def receive(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        received.append(name)
        # Only this one is restored: Python drops another that has come by now, and shows a traceback.
        if len(received) > 1 and name in _ENDING and not patient:
            restore(name)
            signal.raise_signal(number)

    def let_go() -> None:
        if not patient:
            restore(*_ENDING)

    for number in before:
        signal.signal(number, receive)
    try:
        yield received, let_go
    finally:
        restore(*SIGNALS)
