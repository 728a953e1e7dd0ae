"""The files that charlm writes where the user says: how one begins, and where one may be written.

They are never part of a folder's text, and they replace nothing but an earlier one of their kind.
"""

import re
from pathlib import Path

from charlm.errors import DataError

SCORES = "a table of charlm eval --per-char"
ONNX_EXPORT = "an export for ONNX"

_HEAD_BYTES = 80
_PAGE = re.compile(rb"<!DOCTYPE html>\n<!-- [\w ]+, by charlm (\w+) -->\n")
_SCORES = re.compile(rb"position,(character|byte),nats,bits\r\n")
_ONNX = re.compile(rb"\x08.\x12\x06charlm", re.DOTALL)


def page_of(command: str) -> str:
    """The kind of the pages that a command writes; each begins with the mark in its page.html."""
    return f"a page of charlm {command}"


def written_kind(file: Path) -> str:
    """What charlm has written there, in words; "" for other files. OSError if the file cannot be read."""
    with file.open("rb", buffering=0) as opened:
        head = opened.read(_HEAD_BYTES)
    if page := _PAGE.match(head):
        return page_of(page[1].decode())
    if _SCORES.match(head):
        return SCORES
    return ONNX_EXPORT if _ONNX.match(head) else ""


def check_output(file: Path, option: str, kind: str) -> None:
    """DataError now, instead of after a long computation, unless the file can be written and nothing is lost by it.

    It may be new, empty, or an earlier output of this `kind`. A link must lead to such a file. A pipe or device may
    always be written.
    """
    allowed = f"allowed: a new or empty file, or an earlier {kind.partition(' ')[2]}"
    try:
        if file.is_symlink() and not file.exists():
            raise DataError(f"{option} {file}: a link to nothing; {allowed}")
        is_new = not file.exists()
        if not (is_new or file.is_file() or file.is_dir()):
            return
        with file.open("ab"):
            pass
        if is_new:
            file.unlink()
        elif file.stat().st_size and written_kind(file) != kind:
            raise DataError(f"{option} {file}: exists and is not {kind}; {allowed}")
    except OSError as error:
        raise _unwritable(file, option, error) from None


def write_output(file: Path, option: str, content: bytes) -> None:
    """Write the file; DataError if it cannot be written."""
    try:
        file.write_bytes(content)
    except OSError as error:
        raise _unwritable(file, option, error) from None


def _unwritable(file: Path, option: str, error: OSError) -> DataError:
    return DataError(f"{option} {file}: {error.strerror}; allowed: a file that can be written")
