"""The one voice on stderr. Nothing happens where nobody can be told."""

import contextlib
import sys

from charlm.system.formatting import one_line


def say(label: str, message: str) -> None:
    """A line on stderr: a label of up to eight letters, and what there is to tell."""
    _write(f"{label:<8} {message}")


def say_error(message: str) -> None:
    """The line that ends a command."""
    _write(f"error: {message}")


def _write(line: str) -> None:
    with contextlib.suppress(OSError):
        if tqdm := sys.modules.get("tqdm"):  # above the progress bar, where there is one
            tqdm.tqdm.write(one_line(line), file=sys.stderr)
        else:
            print(one_line(line), file=sys.stderr, flush=True)
