"""`charlm`, and `python -m charlm`."""

import contextlib
import os


def main() -> None:
    """Run the command line. Ctrl-C before and after it, where Python would show a traceback, ends the process."""
    try:
        _run()
    except KeyboardInterrupt:
        _stop()


def _run() -> None:
    import signal

    interrupt = signal.getsignal(signal.SIGINT)
    heeds = interrupt is signal.default_int_handler  # the shell has background jobs ignore Ctrl-C
    signal.signal(signal.SIGINT, _stop if heeds else interrupt)

    from charlm import cli

    signal.signal(signal.SIGINT, interrupt)
    try:
        cli.main()
    finally:
        signal.signal(signal.SIGINT, _leave if heeds else interrupt)


def _stop(*_: object) -> None:
    """For Ctrl-C before the command: the line is that of `charlm.cli`, which may not be there yet."""
    with contextlib.suppress(OSError):
        os.write(2, b"stopped  SIGINT: ended at once\n")
    _leave()


def _leave(*_: object) -> None:
    os._exit(130)


if __name__ == "__main__":
    main()
