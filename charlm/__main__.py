"""`charlm`, and `python -m charlm`."""

import os


def main() -> None:
    """Run the command line. Ctrl-C before and after it, where Python would show a traceback, ends the process."""
    try:
        _run()
    except KeyboardInterrupt:
        _leave()


def _run() -> None:
    import signal

    interrupt = signal.getsignal(signal.SIGINT)
    # The shell has background jobs ignore Ctrl-C.
    leave = _leave if interrupt is signal.default_int_handler else interrupt
    signal.signal(signal.SIGINT, leave)

    from charlm import cli

    signal.signal(signal.SIGINT, interrupt)
    try:
        cli.main()
    finally:
        signal.signal(signal.SIGINT, leave)


def _leave(*_: object) -> None:
    os._exit(130)


if __name__ == "__main__":
    main()
