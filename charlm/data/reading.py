"""Read text from files in chunks, and from pipes as it arrives."""

import contextlib
import importlib
import io
import lzma
import re
import select
import stat
import sys
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from charlm.errors import DataError
from charlm.system.files import encoding_fault, lfs_fault, reason_of
from charlm.system.formatting import escaped

CHUNK_BYTES = 1 << 18
"""As much is read at once; of a pipe, what there is."""

_UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error)
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "compression.zstd"}
"""The ending of a compressed file, and the module of Python that reads it."""


def _unpacked(file: io.RawIOBase, path: Path) -> contextlib.AbstractContextManager[Any]:
    """The file, or what is compressed in it."""
    if path.suffix not in _COMPRESSED:
        return file
    try:
        module = importlib.import_module(_COMPRESSED[path.suffix])
    except ImportError:
        raise DataError(f"{path}: found {path.suffix}; allowed: a text, or .gz, .bz2 or .xz; unpack it") from None
    return module.open(file)


def unreadable(path: str | Path, error: Exception) -> DataError:
    """The error for a file, folder or pipe that cannot be read."""
    fault = f"cannot be read: {reason_of(error)}"
    return DataError(f"{text_name(str(path))}: {fault}; a source needs all its files; mend it or name another")


_KINDS = {
    "a gzip file": rb"\x1f\x8b",
    "a bzip2 file": rb"BZh[1-9]1AY&SY",
    "an xz file": rb"\xfd7zXZ\x00",
    "a Zstandard file": rb"\x28\xb5\x2f\xfd",
    "a zip archive or an office document": rb"PK\x03\x04|\xd0\xcf\x11\xe0",
    "a PDF document": rb"%PDF-",
    "an RTF document": rb"\{\\rtf",
    "a tar archive": rb"[\s\S]{257}ustar",
}
"""How files begin that people take for text."""


def check_text(name: str | Path, head: bytes) -> None:
    """DataError if a file that begins with `head` is of a known kind that is no text in UTF-8."""
    if fault := encoding_fault(name, head):
        raise DataError(fault)
    for kind, begin in _KINDS.items():
        if re.match(begin, head):
            allowed = "allowed: text in UTF-8, or compressed as .gz, .bz2 or .xz; unpack it, or save it as plain text"
            raise DataError(f"{name}: found {kind}{_listed(name)}; {allowed}")


def _listed(name: str | Path) -> str:
    """The first texts in a zip archive, in words."""
    names: list[str] = []
    with contextlib.suppress(OSError, zipfile.BadZipFile):
        names = [entry for entry in zipfile.ZipFile(name).namelist() if entry.endswith((".txt", ".md"))]
    return f" with {', '.join(map(escaped, names[:3]))}" if names else ""


def is_pipe(source: str) -> bool:
    """Whether a text can be read only once: stdin, or another pipe."""
    if source == "-" or _DESCRIPTOR.fullmatch(source):
        return True
    with contextlib.suppress(OSError, ValueError):  # no path: the text's own error comes later
        return stat.S_ISFIFO(Path(source).stat().st_mode)
    return False


_DESCRIPTOR = re.compile(r"/dev/stdin|/dev/fd/\d+|/proc/self/fd/\d+")
"""Also of a file: it has this name only as long as it is open."""


def arriving(path: str | Path) -> Iterator[bytes]:
    """The bytes of a file or pipe, or of stdin for "-", as they come; DataError if they cannot be read."""
    try:
        with contextlib.ExitStack() as opened:
            if str(path) == "-":
                file = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
            else:
                raw = opened.enter_context(Path(path).open("rb", buffering=0))
                if raw.seekable():
                    if fault := lfs_fault(path, raw.read(100)):
                        raise DataError(fault)
                    raw.seek(0)
                file = opened.enter_context(_unpacked(raw, Path(path)))
            while (data := file.read(CHUNK_BYTES)) != b"":
                if data is None:  # a pipe in non-blocking mode, which a parent process may have set
                    select.select([file], [], [])
                else:
                    yield data
    except _UNREADABLE as error:
        raise unreadable(path, error) from error


def text_name(path: str) -> str:
    """What messages call a text: its path, or stdin for "-"."""
    return "stdin" if path == "-" else path
