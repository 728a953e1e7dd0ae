"""Find the files of a source: a file, a folder, a glob or a builtin, in a fixed order."""

import difflib
import glob
import os
import stat
import sysconfig
from collections.abc import Callable
from pathlib import Path

from charlm.data.reading import unreadable
from charlm.data.unicode_names import unicode_names
from charlm.errors import DataError

BUILTIN_PREFIX = "builtin:"
BUILTINS: dict[str, str] = {
    "python-stdlib": "the standard library of this Python without its tests: about 12 MB of .py files; "
    "other versions of Python have other text",
    "unicode-names": "the names of Unicode's characters, one a line: about 140,000 lines, for --lines; "
    "other versions of Python know other characters",
}

_KINDS = f"a source is a file, a folder, a glob or {BUILTIN_PREFIX}NAME"


def resolve(source: str) -> list[Path]:
    """The regular files of `source`, at least one, in the same order on every machine.

    A folder means all files below it, sorted by relative path, without hidden files and without following links to
    folders. A glob is sorted too, and `**` matches any depth of folders. An existing path is never read as a glob,
    even if it contains a `[`. DataError if there is nothing to read.
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
        raise unreadable(path, error) from error
    if stat.S_ISREG(mode):
        return [path]
    if stat.S_ISDIR(mode):
        return _folder(source, path)
    raise DataError(f"{source}: {_kind_of(mode)}, which cannot be read twice; {_KINDS}; write its text to a file first")


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


def _folder(source: str, root: Path) -> list[Path]:
    files = _files_below(root, keep=lambda name: not name.startswith("."))
    if not files:
        raise DataError(f"{source}: a folder without files; hidden files do not count; add text files")
    return files


def _glob(source: str) -> list[Path]:
    # Path.glob takes no absolute patterns and matches hidden files.
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
        raise DataError(f"{BUILTIN_PREFIX}{name}: unknown builtin; allowed: {known}{hint}")
    return [unicode_names()] if name == "unicode-names" else _python_stdlib()


def _python_stdlib() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    files = _files_below(root, keep=_is_library_name)
    python_files = [file for file in files if file.suffix == ".py" and _is_utf8(file)]
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


def _files_below(root: Path, keep: Callable[[str], bool]) -> list[Path]:
    """The regular files below `root`, sorted by relative path, if `keep` accepts every part of that path."""

    def refuse(error: OSError) -> None:
        raise unreadable(Path(error.filename), error) from error

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
    from charlm.data.fetch import CATALOG  # imported here because it loads the HTTP client

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
