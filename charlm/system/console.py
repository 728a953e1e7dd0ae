"""Everything that charlm prints on stderr. Errors while printing are ignored."""

import contextlib
import functools
import shutil
import sys
from collections.abc import Mapping
from typing import TextIO

from charlm.system.formatting import one_line, wrapped

_name = ""


def speak_for(name: str) -> None:
    """From now on this process, one of several, prints only errors, with its name."""
    global _name
    _name = name


def say(label: str, message: str, command: str = "") -> None:
    """Print a line: a label of up to eight letters and a message. A command that ends it stays whole, to be copied."""
    if _name:
        return
    start = f"{label:<8} {one_line(message)}" if message else f"{label:<8}"
    text = wrapped(start, terminal_columns(sys.stderr), 9, one_line(command))
    with contextlib.suppress(OSError):
        if tqdm := sys.modules.get("tqdm"):  # prints above the progress bar
            tqdm.tqdm.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)


@functools.cache
def say_once(label: str, message: str) -> None:
    """Print a line unless this process has printed it: a text may be read several times."""
    say(label, message)


def say_all(messages: Mapping[str, str]) -> None:
    """Print a line for each label."""
    for label, message in messages.items():
        say(label, message)


def say_error(message: str) -> None:
    """Print the error that ends a command."""
    name = f"{_name}: " if _name else ""
    with contextlib.suppress(OSError):
        text = wrapped(f"error: {name}{one_line(message)}", terminal_columns(sys.stderr), 7)
        print(text, file=sys.stderr, flush=True)


def terminal_columns(stream: TextIO) -> int | None:
    """The width of a terminal; None for a file or pipe."""
    return shutil.get_terminal_size((80, 24)).columns if stream.isatty() else None
