"""Everything that charlm prints on stderr. Errors while printing are ignored."""

import contextlib
import sys
from collections.abc import Iterator

from charlm.system.formatting import one_line

_name = ""
_quiet = False


def speak_for(name: str) -> None:
    """From now on this process, one of several, prints only errors, with its name."""
    global _name
    _name = name


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Print only errors during the block."""
    global _quiet
    before, _quiet = _quiet, True
    try:
        yield
    finally:
        _quiet = before


def say(label: str, message: str) -> None:
    """Print a line: a label of up to eight letters and a message."""
    if not (_name or _quiet):
        _write(f"{label:<8} {message}")


def say_error(message: str) -> None:
    """Print the error that ends a command."""
    with contextlib.suppress(OSError):
        print(one_line(f"error: {f'{_name}: ' if _name else ''}{message}"), file=sys.stderr, flush=True)


def _write(line: str) -> None:
    with contextlib.suppress(OSError):
        if tqdm := sys.modules.get("tqdm"):  # prints above the progress bar
            tqdm.tqdm.write(one_line(line), file=sys.stderr)
        else:
            print(one_line(line), file=sys.stderr, flush=True)
