"""Find the files of a source: a file, a folder, a glob or a builtin, in a fixed order."""

import difflib
import errno
import fnmatch
import functools
import glob
import os
import re
import stat
import sys
import sysconfig
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from charlm.config.schema import DataConfig
from charlm.data.cache import writable_folder
from charlm.data.catalog import CATALOG
from charlm.data.outputs import TORCH_EXPORT, TORCH_FILES, is_torch_export, written_kind
from charlm.data.reading import unreadable
from charlm.errors import DataError
from charlm.runs import OWN_FILES, is_run, is_study
from charlm.system.cache import cache_dir
from charlm.system.console import say
from charlm.system.files import replace_file

BUILTIN_PREFIX = "builtin:"
BUILTINS: dict[str, str] = {
    "python-stdlib": "the standard library of this Python without its tests: about 12 MB of .py files; "
    "other versions of Python have other text",
    "unicode-names": "the names of Unicode's characters, one a line: about 140,000 lines, for --lines; "
    "other versions of Python know other characters",
}

_KINDS = f"a source is a file, a folder, a glob or {BUILTIN_PREFIX}NAME"


Pattern = tuple[str, ...]
"""The parts of a glob below its first wildcard; `**` is never the last."""
_ALL_BELOW: Pattern = ("**", "*")


def resolve(source: str, run: Path | None = None) -> list[Path]:
    """The regular files of `source`, at least one, in the same order on every machine.

    A folder means all files below it, sorted by relative path. A glob is sorted too, and `**` matches any depth of
    folders. Both leave out hidden files and what charlm writes (runs, studies, checkpoints, exports, pages, scores, its
    cache), take a file with several names once, and follow a link to a folder only where the glob names it or `*`
    matches it. An existing path is never read as a glob, even if it contains a `[`. `run`: a folder that is to become a
    run.

    DataError if there is nothing to read, or if a folder cannot be read.
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
            return _glob(source, run)
        raise _missing(source, path) from None
    except OSError as error:
        raise unreadable(path, error) from error
    if stat.S_ISREG(mode):
        return [path]
    if stat.S_ISDIR(mode):
        return _folder(source, path, run)
    raise DataError(f"{source}: {_kind_of(mode)}, which cannot be read twice; {_KINDS}; write its text to a file first")


def check_texts_apart(data: DataConfig, run: Path) -> None:
    """DataError if a text has files in the folder of a run that is to start: later they would be left out."""
    for source in filter(None, (data.source, data.valid_source, data.test_source)):
        if not source.startswith(BUILTIN_PREFIX) and resolve(source) != resolve(source, run):
            raise DataError(
                f"{source}: has files in {run}, the folder of the run; allowed: a run's folder without files of its "
                "text; take another --run-dir"
            )


def check_exists(source: str) -> None:
    """DataError if there is nothing at `source`. Reads no file and no folder that exists."""
    builtin = source.startswith(BUILTIN_PREFIX) and source.removeprefix(BUILTIN_PREFIX) in BUILTINS
    if builtin or os.path.exists(_at_home(source)):  # noqa: PTH110 (Path.exists raises for a path that is too long)
        return
    words = source.split()
    if len(words) > _PATH_WORDS or len(source) > _PATH_CHARS:
        start = " ".join(words)[:40]
        raise DataError(f"'{start}…': no such file or folder; {_KINDS}; write a text itself to a file first")
    resolve(source)


_PATH_WORDS, _PATH_CHARS = 5, 255
"""What has more is rather a text than the path of one."""


def _folder(source: str, root: Path, run: Path | None) -> list[Path]:
    files, _ = _files_below(source, root, _ALL_BELOW, run)
    if not files:
        raise DataError(
            f"{source}: a folder without text; hidden files and what charlm writes do not count; add text files"
        )
    return files


def _glob(source: str, run: Path | None) -> list[Path]:
    parts = Path(_at_home(source)).parts
    named = next((place for place, part in enumerate(parts) if not _NAME.fullmatch(part)), len(parts) - 1)
    root, pattern = Path(*(_ESCAPE.sub(r"\1", part) for part in parts[:named])), parts[named:]
    files, folders = _files_below(source, root, (*pattern, "*") if pattern[-1] == "**" else pattern, run)
    if not files:
        found = f"only folders match ({folders})" if folders else "no file matches"
        raise DataError(f"{source}: {found}; a glob names files, `**` any depth of folders; check the pattern")
    return files


_ESCAPE = re.compile(r"\[([*?[])\]")
_NAME = re.compile(rf"([^*?[]|{_ESCAPE.pattern})*")
"""A part of a glob that stands for one name."""


def _builtin(name: str) -> list[Path]:
    if name not in BUILTINS:
        near = difflib.get_close_matches(name, BUILTINS, n=1, cutoff=0.4)
        hint = f"; did you mean '{BUILTIN_PREFIX}{near[0]}'?" if near else ""
        known = ", ".join(BUILTINS)
        raise DataError(f"{BUILTIN_PREFIX}{name}: unknown builtin; allowed: {known}{hint}")
    return [unicode_names()] if name == "unicode-names" else _python_stdlib()


def unicode_names() -> Path:
    """A file with the name of each character that has one, by code point; made at first use and kept in the cache."""
    with writable_folder() as folder:
        path = folder / f"unicode-names-{unicodedata.unidata_version}.txt"
        if not path.is_file():
            names = (unicodedata.name(chr(code), "") for code in range(sys.maxunicode + 1))
            replace_file(path, "".join(f"{name}\n" for name in names if name).encode("ascii"), 0o600)
    return path


def _python_stdlib() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    files, _ = _files_below(f"{BUILTIN_PREFIX}python-stdlib", root, ("**", "*.py"), keep=_is_library_name)
    python_files = [file for file in files if _is_utf8(file)]
    if not python_files:
        raise DataError(
            f"{BUILTIN_PREFIX}python-stdlib: no .py files under {root}; "
            "this Python has no readable standard library; name a file or folder instead"
        )
    return python_files


def _is_library_name(name: str) -> bool:
    """False for tests, installed packages, and files that were generated when this Python was built."""
    if name in ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"):
        return False
    return not name.startswith(("test_", "config-", "_sysconfigdata", "."))


def _is_utf8(path: Path) -> bool:
    """False for Python source that declares another encoding: the builtin leaves it out."""
    try:
        path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return False
    except OSError as error:
        raise unreadable(path, error) from error
    return True


def _is_text_name(name: str) -> bool:
    return name != "__pycache__"


_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of a broken link, and of a file that was removed since it was listed."""


def _files_below(
    source: str, root: Path, pattern: Pattern, run: Path | None = None, keep: Callable[[str], bool] = _is_text_name
) -> tuple[list[Path], int]:
    """The files that match the pattern, sorted by relative path, and how many folders match.

    `keep` decides by name what else to leave out, without a word.
    """
    files: dict[Path, tuple[int, int]] = {}
    left_out: dict[Path, str] = {}
    count_folders = 0
    is_own = _own_folders(run)
    own_names = _names_written(is_own(root))
    waiting = [(root, {pattern})]
    while waiting:
        folder, patterns = waiting.pop()
        for name, linked in _listed(folder):
            path, left = folder / name, _after(patterns, name)
            if not left or not keep(name):
                continue
            try:
                status = path.stat()
                is_file = stat.S_ISREG(status.st_mode) and () in left
                own_name = own_names.get(name) if folder == root else None
                kind = own_name or written_kind(path) if is_file else ""
            except OSError as error:
                if error.errno in _NOWHERE:
                    continue
                raise unreadable(path, error) from error
            if is_file:
                if kind:
                    left_out[path] = kind
                else:
                    files[path] = (status.st_dev, status.st_ino)
            elif stat.S_ISDIR(status.st_mode):
                count_folders += () in left
                below = _after(patterns, name, linked) - {()}
                if left == {()}:
                    continue
                if kind := is_own(path):
                    left_out[path] = kind
                elif below:
                    waiting.append((path, below))
                else:
                    left_out[path] = "a link to a folder"
    if left_out and not run:
        _say_left_out(source, tuple(sorted((path.as_posix(), kind) for path, kind in left_out.items())))
    first_names: dict[tuple[int, int], Path] = {}
    for path in sorted(files, key=Path.as_posix):
        first_names.setdefault(files[path], path)
    return list(first_names.values()), count_folders


def _after(patterns: set[Pattern], name: str, linked: bool = False) -> set[Pattern]:
    """What is left of the patterns behind an entry of this name; () of one that ends with it.

    linked: it is a link to a folder, which `**` does not follow.
    """
    left: set[Pattern] = set()
    for first, *others in patterns:
        rest = tuple(others)
        hidden = name.startswith(".") and not first.startswith(".")
        if first == "**":
            left |= _after({rest}, name, linked)
            if not (hidden or linked):
                left.add((first, *rest))
        elif fnmatch.fnmatch(name, first) and not hidden:
            left.add(rest)
    return left


def _listed(folder: Path) -> list[tuple[str, bool]]:
    """The names in a folder, each with whether it is a link; none if there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_symlink()) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise unreadable(folder, error) from error


def _own_folders(run: Path | None) -> Callable[[Path], str]:
    """A function that says what charlm writes into a folder; "" if nothing."""
    own: dict[str, str] = {os.path.realpath(run): "a run"} if run else {}
    with suppress(DataError):  # a user without a home has no cache
        own[os.path.realpath(cache_dir())] = "charlm's cache"

    def is_own(folder: Path) -> str:
        if kind := own.get(os.path.realpath(folder)):
            return kind
        if is_run(folder):
            return "a run"
        return "a study" if is_study(folder) else TORCH_EXPORT if is_torch_export(folder) else ""

    return is_own


def _names_written(kind: str) -> dict[str, str]:
    """The files that charlm writes into a folder of this kind, each with what it is."""
    if kind == TORCH_EXPORT:
        return dict.fromkeys(TORCH_FILES, "a file of the export")
    return dict.fromkeys(OWN_FILES if kind else (), "a file of the run")


@functools.cache
def _say_left_out(source: str, found: tuple[tuple[str, str], ...]) -> None:
    """Say it once, however often the source is read."""
    shown = ", ".join(f"{path} ({kind})" for path, kind in found[:3])
    more = f" and {len(found) - 3:,} more" if len(found) > 3 else ""
    say("data", f"{source}: leaves out {shown}{more}")


def _missing(source: str, path: Path) -> DataError:
    """The error for a path that does not exist, with the likeliest remedy."""
    downloads = {item.filename: item.name for item in CATALOG.values()} | {name: name for name in CATALOG}
    if name := downloads.get(path.name):
        remedy = f"`charlm data fetch {name}` downloads it to data/"
    elif source in BUILTINS:
        remedy = f"did you mean '{BUILTIN_PREFIX}{source}'?"
    else:
        near = difflib.get_close_matches(path.name, _names_in(path.parent), n=1)
        remedy = f"did you mean '{path.with_name(near[0])}'?" if near else "check the path"
    return DataError(f"{source}: no such file or folder; {_KINDS}; {remedy}")


def _at_home(source: str) -> str:
    """Expand a leading ~; Path.expanduser would raise for an unknown ~user."""
    return os.path.expanduser(source)  # noqa: PTH111


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except (OSError, ValueError):  # the error line just goes without a hint
        return []


def _kind_of(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"
