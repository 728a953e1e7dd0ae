"""Find the files of a source: a file, a folder, a glob or a builtin, in a fixed order."""

import difflib
import fnmatch
import glob
import os
import re
import sys
import sysconfig
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from charlm.config.schema import Config, DataConfig
from charlm.data.fetch import CATALOG
from charlm.data.outputs import output_kind
from charlm.data.reading import is_pipe, unreadable
from charlm.errors import DataError
from charlm.runs import TEXT, is_run
from charlm.system.cache import cache_dir, cache_folder
from charlm.system.console import say_once
from charlm.system.files import replace_file

BUILTIN_PREFIX = "builtin:"
BUILTINS: dict[str, str] = {
    "python-stdlib": "the standard library of this Python without its tests: about 12 MB of .py files; "
    "other versions of Python have other text",
    "unicode-names": "the names of Unicode's characters, one a line: about 140,000 lines, for --lines; "
    "other versions of Python know other characters",
}
_SOURCES = f"a source is a file, a folder, a glob or {BUILTIN_PREFIX}NAME"


def resolve(source: str) -> list[Path]:
    """The regular files of `source`, at least one, in the same order on every machine; DataError if there are none.

    A folder means all files below it, a glob those that match; `**` matches any depth of folders. Both are sorted by
    path, and leave out hidden files and what charlm writes (runs, exports, pages, scores, its cache). A link to a
    folder is followed only where the glob names it or `*` matches it. An existing path is never read as a glob.
    """
    if source.startswith(BUILTIN_PREFIX):
        return _builtin(source.removeprefix(BUILTIN_PREFIX))
    if not source:
        raise DataError(f"data source: empty; {_SOURCES}; name one")
    path = Path(_at_home(source))
    if source != "-" and not _exists(source):
        if glob.has_magic(source):
            return _glob(source)
        raise _missing(source, path)
    if source == "-" or not (path.is_file() or path.is_dir()):
        allowed = "allowed: a file, or a pipe as TEXT of `charlm train`; save the text to a file first"
        raise DataError(f"{source}: no regular file, so it cannot be read twice; {allowed}")
    if path.is_file():
        return [path]
    if is_run(path) or not (files := _files_below(source, path, ("**", "*"))):
        raise DataError(
            f"{source}: found no text in the folder; hidden files and charlm's own do not count; add text files"
        )
    return files


def text_files(source: str) -> list[str]:
    """The files of a source; of a pipe, the pipe itself."""
    return [source] if is_pipe(source) else [str(path) for path in resolve(source)]


def check_texts_apart(data: DataConfig, run: Path) -> None:
    """DataError if a text has files in the folder of a run that is to start: later they would be left out."""
    for source in filter(None, (data.source, data.valid_source, data.test_source)):
        kept = run.resolve() / TEXT  # never in a folder or glob that is a source
        if any(run.resolve() in file.resolve().parents and file.resolve() != kept for file in resolve(source)):
            allowed = "allowed: a run's folder outside the text; take another --run-dir"
            raise DataError(f"{source}: found files in {run}, the run's folder; {allowed}")


def check_exists(source: str, *, or_pipe: bool = False) -> None:
    """DataError if there is nothing at `source`, or a pipe unless it may be one. Reads no file and no folder."""
    is_fault = not or_pipe if is_pipe(source) else is_gone(source)
    if is_fault:
        resolve(source)


def is_gone(source: str) -> bool:
    """Whether there is nothing at a source."""
    if source.startswith(BUILTIN_PREFIX):
        return source.removeprefix(BUILTIN_PREFIX) not in BUILTINS
    return not _exists(source) and not any(glob.iglob(_at_home(source), recursive=True))  # noqa: PTH207


def _glob(source: str) -> list[Path]:
    parts = Path(_at_home(source)).parts
    named = next(place for place, part in enumerate(parts) if glob.has_magic(part))
    pattern = parts[named:] if parts[-1] != "**" else (*parts[named:], "*")
    files = _files_below(source, Path(*parts[:named]), pattern)
    if not files:
        raise DataError(f"{source}: no file matches; a glob names files, `**` any depth of folders; check the pattern")
    return files


def _files_below(
    source: str, root: Path, pattern: tuple[str, ...], skipped: Callable[[str], object] = "__pycache__".__eq__
) -> list[Path]:
    """The files that match a pattern, sorted; `**` is never its last part. `skipped` leaves out others by name."""
    left_out: set[str] = set()

    def walk(folder: Path, first: str, *rest: str) -> Iterator[Path]:
        if first == "**":
            yield from walk(folder, *rest)
        for entry in _listed(folder):
            path, is_hidden = folder / entry.name, entry.name.startswith(".") and not first.startswith(".")
            if is_hidden or skipped(entry.name) or (first != "**" and not fnmatch.fnmatch(entry.name, first)):
                continue
            if not rest:
                if entry.is_file():
                    yield path
            elif entry.is_dir():
                if (first == "**" and entry.is_symlink()) or _is_own(path):
                    left_out.add(path.as_posix())
                else:
                    yield from walk(path, *([first] if first == "**" else []), *rest)

    files = set()
    try:
        for path in walk(root, *pattern):
            if output_kind(path):
                left_out.add(path.as_posix())
            else:
                files.add(path)
    except OSError as error:
        raise unreadable(Path(os.fsdecode(error.filename or root)), error) from error
    except RecursionError:
        raise DataError(f"{source}: folders in folders, hundreds deep; allowed: a folder of texts") from None
    if left_out:
        shown = ", ".join(sorted(left_out)[:3])
        more = f" and {len(left_out) - 3:,} more" if len(left_out) > 3 else ""
        say_once("data", f"{source}: leaves out {shown}{more}: links to folders, or what charlm wrote")
    return sorted(files, key=Path.as_posix)


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder; nothing if there is no such folder."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _is_own(folder: Path) -> bool:
    """Whether charlm wrote what is in a folder."""
    with suppress(DataError):  # a user without a home has no cache
        if folder.resolve() == cache_dir().resolve():
            return True
    return is_run(folder)


def _missing(source: str, path: Path) -> DataError:
    """The error for a path that does not exist, with the likeliest remedy."""
    if name := next((name for name in CATALOG if path.name in (name, f"{name}.txt")), None):
        remedy = f"`charlm data fetch {name}` downloads it to data/"
    elif source in BUILTINS:
        remedy = f"did you mean '{BUILTIN_PREFIX}{source}'?"
    else:
        names: list[str] = []
        with suppress(OSError, ValueError):  # the error line just goes without a hint
            names = sorted(entry.name for entry in path.parent.iterdir())
        near = difflib.get_close_matches(path.name, names, n=1)
        remedy = f"did you mean '{path.with_name(near[0])}'?" if near else "check the path"
    shown = source if len(source) <= 255 else f"{source[:40]}…"
    return DataError(f"{shown}: no such file or folder; {_SOURCES}; {remedy}")


def _at_home(source: str) -> str:
    """Expand a leading ~; Path.expanduser would raise for an unknown ~user."""
    return os.path.expanduser(source)  # noqa: PTH111


def _exists(source: str) -> bool:
    return os.path.exists(_at_home(source))  # noqa: PTH110 (Path.exists raises for a path that is too long)


# Builtins


def _builtin(name: str) -> list[Path]:
    if name == "python-stdlib":
        return _python_stdlib()
    if name == "unicode-names":
        return [_unicode_names()]
    near = difflib.get_close_matches(name, BUILTINS, n=1, cutoff=0.4)
    hint = f"; did you mean '{BUILTIN_PREFIX}{near[0]}'?" if near else ""
    raise DataError(f"{BUILTIN_PREFIX}{name}: unknown builtin; allowed: {', '.join(BUILTINS)}{hint}")


def _unicode_names() -> Path:
    """A file with the name of each character that has one, by code point; made at first use and kept in the cache."""
    path = cache_folder("corpora") / f"unicode-names-{unicodedata.unidata_version}.txt"
    if not path.is_file():
        names = (unicodedata.name(chr(code), "") for code in range(sys.maxunicode + 1))
        replace_file(path, "".join(f"{name}\n" for name in names if name).encode("ascii"), 0o600)
    return path


def _python_stdlib() -> list[Path]:
    """Without tests, installed packages, and files that were generated when this Python was built."""
    skipped = re.compile(
        r"tests?|idle_test|(site|dist)-packages|__pycache__|(test_|config-|_sysconfigdata|\.).*", re.DOTALL
    )
    root = Path(sysconfig.get_path("stdlib"))
    source = f"{BUILTIN_PREFIX}python-stdlib"
    files = _files_below(source, root, ("**", "*.py"), skipped.fullmatch)
    files = [file for file in files if _is_utf8(file.read_bytes())]  # others declare another encoding
    if not files:
        advice = "this Python has no readable standard library; name a file or folder instead"
        raise DataError(f"{source}: no .py files under {root}; {advice}")
    return files


def _is_utf8(data: bytes) -> bool:
    with suppress(UnicodeDecodeError):
        data.decode("utf-8")
        return True
    return False


# The paths that a run keeps


def with_absolute_paths(config: Config) -> Config:
    """The same config, with paths of its sources that hold in every folder."""
    sources = {key: getattr(config.data, key) for key in ("source", "valid_source", "test_source")}
    update = {key: _absolute(source) for key, source in sources.items() if source is not None}
    return config.model_copy(update={"data": config.data.model_copy(update=update)})


def _absolute(source: str) -> str:
    """The path of a source from the root; one that begins with ~ stays as it is, and so does a builtin."""
    if source.startswith(BUILTIN_PREFIX) or Path(_at_home(source)).is_absolute():
        return source
    try:
        folder = str(Path.cwd())
        folder.encode()  # a config holds Unicode text
    except (OSError, UnicodeEncodeError):
        return source
    if _exists(source) or not glob.has_magic(source):
        return str(Path(folder, source))
    return str(Path(glob.escape(folder), source))
