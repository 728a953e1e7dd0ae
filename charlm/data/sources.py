"""Where text comes from: a file, a folder, a glob or a builtin, resolved to files in a fixed order and
read in chunks as characters or bytes.
"""

import codecs
import difflib
import glob
import hashlib
import os
import stat
import sysconfig
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.data.vocabulary import Level
from charlm.errors import DataError
from charlm.native import utf8
from charlm.native.utf8 import Decode

BUILTIN_PREFIX = "builtin:"
BUILTINS: dict[str, str] = {
    "python-stdlib": "the running Python's standard library without its tests: about 12 MB of .py files; "
    "another Python version has another text",
}

# Half of it, and handing chunks to other threads costs a tenth of the time; twice, and no text is read faster.
CHUNK_BYTES = 1 << 19
# How far a background thread may fall behind: it evens out the chunks, and holds some MB of them.
CALLS_BEHIND = 4

Symbols = npt.NDArray[np.unsignedinteger[Any]]  # code points, or bytes at level byte
_KINDS = f"a source is a file, a folder, a glob or {BUILTIN_PREFIX}NAME"


@contextmanager
def in_background() -> Iterator[Callable[..., None]]:
    """A function `later(function, *arguments)`: the calls run one after another in a thread of their own.

    What one of them raises comes out of a `later` after it or of the block's end, which waits for all
    of them; a block that is left by an error drops those not yet begun. The thread ends with the block.
    Worth it for what releases the GIL: hashlib, zlib, files, most of numpy.
    """
    under_way: deque[Future[Any]] = deque()
    pool = ThreadPoolExecutor(1)

    def later(function: Callable[..., Any], *arguments: Any) -> None:
        if len(under_way) == CALLS_BEHIND:
            under_way.popleft().result()
        under_way.append(pool.submit(function, *arguments))

    try:
        yield later
        while under_way:
            under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def resolve(source: str) -> list[Path]:
    """The regular files of `source`, never none, in an order that does not depend on the machine.

    A file stands for itself. A folder stands for all files below it, sorted by relative path; hidden
    ones are left out and links to folders are not followed. A glob (`**` goes down any number of
    folders) is sorted too. A path that exists is never read as a glob, even if it holds a `[`.

    Raises DataError where there is nothing to read.
    """
    if source.startswith(BUILTIN_PREFIX):
        return _builtin(source.removeprefix(BUILTIN_PREFIX))
    if not source:
        raise DataError(f"data source: empty; {_KINDS}; name one")
    path = Path(_at_home(source))
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a null character
        if glob.has_magic(source):
            return _glob(source)
        raise _missing(source, path) from None
    except OSError as error:
        raise _unreadable(path, error) from error
    if stat.S_ISREG(mode):
        return [path]
    if stat.S_ISDIR(mode):
        return _folder(source, path)
    raise DataError(f"{source}: {_kind_of(mode)}, which cannot be read twice; {_KINDS}; write its text to a file first")


def file_sizes(paths: Iterable[Path]) -> list[int]:
    """Bytes of each file."""
    sizes = []
    for path in paths:
        try:
            sizes.append(path.stat().st_size)
        except OSError as error:
            raise _unreadable(path, error) from error
    return sizes


def sha256_of(paths: Iterable[Path]) -> str:
    """Of the bytes of all files, one after another."""
    hasher = hashlib.sha256()
    for path in paths:
        for _ in read_chunks(path, hasher.update):
            pass
    return hasher.hexdigest()


def read_chunks(path: Path, see: Callable[[bytes], object]) -> Iterator[bytes]:
    """The file's bytes in chunks, each after `see` was called with it; DataError if it changes meanwhile.

    `see` must not raise OSError: that would be taken for one of the file's.
    """
    try:
        with path.open("rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            while chunk := file.read(CHUNK_BYTES):
                see(chunk)
                yield chunk
            after = os.fstat(file.fileno())
    except OSError as error:
        raise _unreadable(path, error) from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise changed(path)


def read_symbols(
    path: Path, level: Level, see: Callable[[bytes], object], decode: Decode = utf8.decode
) -> Iterator[Symbols]:
    """The file's code points (level char) or bytes in chunks of any length; DataError if not UTF-8.

    `see` is called with the bytes, chunk by chunk. At level char a byte order mark at the file's start
    is dropped. Line ends stay as they are.
    """
    if level == "byte":
        yield from (np.frombuffer(chunk, np.uint8) for chunk in read_chunks(path, see))
        return
    at_start = True
    for symbols in _decoded(path, see, decode):
        if at_start and len(symbols):
            at_start = False
            if symbols[0] == ord("\ufeff"):
                symbols = symbols[1:]
        yield symbols


def _decoded(path: Path, see: Callable[[bytes], object], decode: Decode) -> Iterator[Symbols]:
    """The code points of a UTF-8 file; a sequence cut by a chunk's end waits in `pending` for the rest."""
    pending = b""
    read = 0
    try:
        for chunk in read_chunks(path, see):
            read += len(chunk)
            if not pending and chunk.isascii():
                yield np.frombuffer(chunk, np.uint8)
                continue
            pending += chunk
            symbols, used = decode(pending)
            pending = pending[used:]
            yield symbols
        codecs.utf_8_decode(pending, "strict", True)
    except UnicodeDecodeError as error:
        offset = read - len(error.object) + error.start
        raise DataError(
            f"{path}: byte 0x{error.object[error.start]:02X} at offset {offset} is not UTF-8 ({error.reason}); "
            "data.level: char needs UTF-8 text; convert the file or set data.level: byte"
        ) from error


class Draft:
    """Code points kept in a nameless file in `folder`, block by block, to be read again without being decoded again.

    A block is of the narrowest type that holds all but a few of it; those few are kept beside it.
    """

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._blocks: list[tuple[np.dtype, int, int]] = []

    def append(self, symbols: Symbols) -> None:
        """Write the next block."""
        dtype, above = symbols.dtype, np.empty(0, np.int64)
        for narrower in map(np.dtype, (np.uint8, np.uint16)):
            outside = symbols > np.iinfo(narrower).max
            if narrower.itemsize < dtype.itemsize and np.count_nonzero(outside) <= len(symbols) // 16:
                dtype, above = narrower, np.flatnonzero(outside)
        for part in (symbols.astype(dtype, copy=False), above, symbols[above].astype(np.uint32)):
            self._file.write(part.data)
        self._blocks.append((dtype, len(symbols), len(above)))

    def read(self) -> Iterator[Symbols]:
        """The blocks again."""
        self._file.seek(0)
        for dtype, length, count_above in self._blocks:
            symbols = self._read(dtype, length)
            above = self._read(np.dtype(np.int64), count_above)
            values = self._read(np.dtype(np.uint32), count_above)
            if count_above:
                symbols = symbols.astype(np.uint32)
                symbols[above] = values
            yield symbols

    def _read(self, dtype: np.dtype, length: int) -> npt.NDArray[Any]:
        return np.frombuffer(self._file.read(length * dtype.itemsize), dtype)

    def close(self) -> None:
        """Free the file."""
        with suppress(OSError):  # on a full disk its buffer cannot be written, and need not be
            self._file.close()


def _folder(source: str, root: Path) -> list[Path]:
    files = _files_below(root, keep=lambda name: not name.startswith("."))
    if not files:
        raise DataError(f"{source}: a folder with no files below it; hidden ones do not count; add text files")
    return files


def _glob(source: str) -> list[Path]:
    # Not Path.glob: that one takes no absolute patterns and matches hidden files.
    matches = glob.glob(_at_home(source), recursive=True)  # noqa: PTH207
    files = sorted({match for match in matches if Path(match).is_file()})
    if not files:
        found = f"only folders match ({len(matches)})" if matches else "no file matches"
        raise DataError(f"{source}: {found}; a glob names files, `**` any depth of folders; check the pattern")
    return [Path(file) for file in files]


def _builtin(name: str) -> list[Path]:
    if name not in BUILTINS:
        near = difflib.get_close_matches(name, BUILTINS, n=1, cutoff=0.4)
        hint = f"; did you mean '{BUILTIN_PREFIX}{near[0]}'?" if near else ""
        known = ", ".join(BUILTINS)
        raise DataError(f"{BUILTIN_PREFIX}{name}: unknown builtin; known: {known}{hint}")
    root = Path(sysconfig.get_path("stdlib"))
    files = _files_below(root, keep=_is_library_name)
    python_files = [file for file in files if file.suffix == ".py" and _is_utf8(file)]
    if not python_files:
        raise DataError(
            f"{BUILTIN_PREFIX}{name}: no .py files under {root}; "
            "this Python has no readable standard library; name a file or folder instead"
        )
    return python_files


def _is_library_name(name: str) -> bool:
    """False for tests, other people's packages, and files made when this Python was built."""
    if name in ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"):
        return False
    return not name.startswith(("test_", "config-", "_sysconfigdata", "."))


def _is_utf8(path: Path) -> bool:
    """Python source may declare another encoding; such a file is left out of the builtin."""
    try:
        path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    except OSError as error:
        raise _unreadable(path, error) from error
    return True


def _files_below(root: Path, keep: Callable[[str], bool]) -> list[Path]:
    """Regular files below `root` whose every part below it passes `keep`, sorted by relative path."""

    def refuse(error: OSError) -> None:
        raise _unreadable(Path(error.filename), error) from error

    found: list[Path] = []
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if keep(name)]
        for name in filter(keep, names):
            path = Path(folder, name)
            if path.is_file():
                found.append(path.relative_to(root))
    return [root / path for path in sorted(found, key=Path.as_posix)]


def _missing(source: str, path: Path) -> DataError:
    """The error for a path that does not exist, with the likeliest remedy."""
    from charlm.data.fetch import CATALOGUE  # only on this way out: it loads the HTTP client

    downloads = {item.filename: item.name for item in CATALOGUE.values()} | {name: name for name in CATALOGUE}
    if name := downloads.get(path.name):
        remedy = f"`charlm data fetch {name}` downloads it to data/"
    elif source in BUILTINS:
        remedy = f"did you mean '{BUILTIN_PREFIX}{source}'?"
    else:
        near = difflib.get_close_matches(path.name, _names_in(path.parent), n=1)
        remedy = f"did you mean '{path.with_name(near[0])}'?" if near else "check the path"
    return DataError(f"{source}: no such file or folder; {_KINDS}; {remedy}")


def _at_home(source: str) -> str:
    """`source` with a leading ~ replaced; Path.expanduser would raise on an unknown ~user."""
    return os.path.expanduser(source)  # noqa: PTH111


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except (OSError, ValueError):  # only a hint is lost
        return []


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: cannot be read: {error.strerror}; every file and folder of a source is read")


def changed(source: str | Path) -> DataError:
    """The error for a source that is no longer what it was when reading began."""
    return DataError(f"{source}: changed while being read; it must hold still; run again once it does")


def _kind_of(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"
