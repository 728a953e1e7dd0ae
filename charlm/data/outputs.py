"""The files that charlm writes where the user says: no text of a folder, and they replace no other file."""

import contextlib
import errno
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from charlm.errors import DataError
from charlm.system.console import say
from charlm.system.files import reason_of, regular, replacing, temporary_beside

_HEAD_BYTES = 80
_BEGINNINGS = {
    "a page of charlm export": rb"<!DOCTYPE html>\n<!-- [\w ]+, by charlm export -->\n",
    "a page of charlm look": rb"<!DOCTYPE html>\n<!-- [\w ]+, by charlm look -->\n",
    "a page of charlm report": rb"<!DOCTYPE html>\n<!-- [\w ]+, by charlm report -->\n",
    "scores of charlm eval": rb"position,character,nats,bits\r\n",
    "a C file of charlm export": rb"/\* A character-level language model, written by charlm export\.\n",
    "an ONNX model of charlm": rb"\x08.\x12\x06charlm",
}
"""How the files of each kind begin."""


def output_kind(file: Path) -> str:
    """What charlm has written there; "" for another file. OSError if it cannot be read."""
    with open(file, "rb", buffering=0, opener=regular) as opened:
        head = opened.read(_HEAD_BYTES)
    return next((kind for kind, begin in _BEGINNINGS.items() if re.match(begin, head, re.DOTALL)), "")


def check_output(file: Path, option: str, kind: str) -> None:
    """DataError, before a long computation, unless the file is new, empty, an earlier output of this kind, or a pipe.

    A link must lead to such a file.
    """
    assert kind in _BEGINNINGS, kind
    allowed = f"allowed: a new or empty file, or {kind}"
    try:
        if file.is_symlink() and not file.exists():
            raise DataError(f"{option} {file}: a broken link; {allowed}")
        is_new = not file.exists()
        if not (is_new or file.is_file() or file.is_dir()):
            return
        with file.open("ab"):
            pass
        beside = temporary_beside(file.resolve())
        beside.touch()
        beside.unlink()
        if is_new:
            file.unlink()
        elif file.stat().st_size and (found := output_kind(file)) != kind:
            raise DataError(f"{option} {file}: exists and is {found or 'another file'}; {allowed}")
    except OSError as error:
        raise _unwritable(file, option, error) from None


@contextlib.contextmanager
def writing(file: Path, option: str) -> Iterator[BinaryIO]:
    """What the block writes replaces the file, or what a link leads to, at its end; a pipe gets it at once."""
    try:
        is_new = not file.exists()
        if is_new or file.is_file():
            mode = 0o666 if is_new else stat.S_IMODE(file.stat().st_mode)
            with replacing(file.resolve(), mode) as opened:
                yield opened
        else:
            with open(file, "wb", opener=_awaited if file.is_fifo() else None) as opened:
                yield opened
    except OSError as error:
        raise _unwritable(file, option, error) from None


def _awaited(pipe: str, flags: int) -> int:
    """An opener that says whether it waits for somebody who reads the pipe."""
    assert sys.platform != "win32"
    try:
        descriptor = os.open(pipe, flags | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        say("wait", f"{pipe}: a pipe that nobody reads yet")
        return os.open(pipe, flags)
    os.set_blocking(descriptor, True)
    return descriptor


def _unwritable(file: Path, option: str, error: OSError) -> DataError:
    return DataError(f"{option} {file}: {reason_of(error)}; allowed: a file that can be written")
