"""Files and folders."""

import codecs
import contextlib
import errno
import os
import re
import secrets
import shlex
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

_TEMPORARY = ".charlm.tmp"
"""How the names of temporary files end."""


@contextlib.contextmanager
def replacing(file: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file that replaces `file`, or the link there, in one step at the end of the block; then it is on disk.

    Readers see the old content or the new, never a part. Several processes may replace it at once.
    """
    temporary = temporary_beside(file)
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as opened:
            yield opened
            opened.flush()
            os.fsync(opened.fileno())
        move(temporary, file)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    remove_leftovers(file.parent)


def move(source: Path, target: Path) -> None:
    """Give a closed file the place of another, and wait until its name is on disk, if the file system can do that."""
    for pause_s in (*_PAUSES_S, 0.0):
        try:
            source.replace(target)
            break
        except PermissionError:
            if not pause_s:
                raise
            time.sleep(pause_s)
    if sys.platform == "win32":  # which has no call to sync a folder
        return
    try:
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EACCES)
"""What network disks answer that cannot sync a folder; the last, for a folder that may be written but not read."""
_PAUSES_S = (0.01, 0.1, 0.5, 1.0) if sys.platform == "win32" else ()


def replace_file(file: Path, data: bytes, mode: int = 0o666) -> None:
    """Replace a file in one step, see `replacing`."""
    with replacing(file, mode) as opened:
        opened.write(data)


def temporary_beside(file: Path) -> Path:
    """A name in the folder of `file` that no other process has, for a file that is to replace it."""
    return file.with_name(f".{secrets.token_hex(8)}{_TEMPORARY}")


def remove_leftovers(folder: Path, age_s: float = 3600) -> None:
    """Remove the temporary files of killed processes: those older than `age_s`, longer than writing takes."""
    for path in folder.glob(f".*{_TEMPORARY}"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > age_s:
                path.unlink()


class NotOwnError(OSError):
    """Something else stands where charlm keeps a file or folder; `filename` and `strerror` say where and what."""


def regular(name: str, flags: int) -> int:
    """An opener: NotOwnError at once for a pipe, a device or a folder. A pipe would wait for its other end."""
    path = Path(name)
    if path.exists() and not path.is_file():
        raise NotOwnError(errno.EINVAL, "found no regular file", name)
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0), 0o666)


def unlinked(name: str, flags: int) -> int:
    """An opener like `regular`, which follows no link: for files that are written."""
    path = Path(name)
    refuse_links(path.parent, [path.name])
    return regular(name, flags | getattr(os, "O_NOFOLLOW", 0))


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """NotOwnError for a link among the names in a folder: through it charlm would write or remove files elsewhere."""
    for name in names:
        if (folder / name).is_symlink():
            found = "found a link, through which charlm does not write"
            raise NotOwnError(errno.ELOOP, found, str(folder / name))


def read_file(path: Path, most_bytes: int) -> bytes:
    """The content of a regular file; OSError for any other, and for one of more than `most_bytes`."""
    with open(path, "rb", opener=regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise NotOwnError(errno.EFBIG, f"found {size:,} bytes, more than {most_bytes:,}", str(path))
        return file.read(size)


def reason_of(error: BaseException) -> str:
    """Why a file cannot be read or written, in words."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def plain_name(text: str) -> str:
    """A name for a file or folder that every system takes: at most 40 letters, digits, - and _ of a text."""
    name = re.sub(r"[^\w-]+", "-", text).strip("-")[:40] or "run"
    return f"{name}_" if _DEVICE.fullmatch(name) else name


_DEVICE = re.compile("con|prn|aux|nul|(com|lpt).", re.IGNORECASE)
"""The names that Windows keeps for devices."""


_ENCODINGS = {
    "UTF-32": rb"\xff\xfe\0\0|\0\0\xfe\xff",
    "UTF-16": rb"\xff\xfe|\xfe\xff",
    "UTF-16LE": rb"([^\0]\0){16}",
    "UTF-16BE": rb"(\0[^\0]){16}",
}
"""How texts that are not in UTF-8 begin: with a mark, or with sixteen characters of ASCII."""


def is_text(head: bytes) -> bool:
    """Whether a file that begins with `head` can be a text in UTF-8."""
    with contextlib.suppress(UnicodeDecodeError):
        return "\0" not in codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    return False


def lfs_fault(name: str | Path, head: bytes) -> str:
    """What is wrong with a file that begins with `head` and stands for another one; "" for other files."""
    if head.startswith(b"version https://git-lfs."):
        return f"{name}: found git-lfs's pointer to the file; allowed: the file itself; run `git lfs pull`"
    return ""


def encoding_fault(name: str | Path, head: bytes) -> str:
    """What is wrong with a text that begins with `head` and is in UTF-16 or UTF-32; "" for other texts."""
    for encoding, begin in _ENCODINGS.items():
        if re.match(begin, head):
            convert = f"iconv -f {encoding} -t UTF-8 {shlex.quote(str(name))} > utf8.txt"
            return f"{name}: found text in {encoding}; allowed: text in UTF-8; convert it: {convert}"
    return ""
