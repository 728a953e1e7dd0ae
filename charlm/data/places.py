"""Where the sources of a run are: it works from every folder, and moves together with its texts."""

import glob
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from charlm.config.schema import Config
from charlm.data.sources import BUILTIN_PREFIX
from charlm.system.console import say


def with_absolute_paths(config: Config) -> Config:
    """The same config, with paths of its sources that hold in every folder."""
    return _renamed(config, _absolute)


def with_found_paths(config: Config, run_dir: Path) -> Config:
    """The config of a run, with its sources where they are now: where the config says, or else beside the run.

    A run may have moved together with its text: old/place/data/my.txt is looked for as place/data/my.txt,
    data/my.txt and my.txt, in the run's folder and in those above it. A line says what was found.
    """

    def found(source: str) -> str:
        if _is_there(source):
            return _absolute(source)
        moved = next(filter(_is_there, _candidates(source, run_dir)), source)
        if moved != source:
            say("data", f"{source}: not there; found {moved}")
        return moved

    return _renamed(config, found)


def _renamed(config: Config, name: Callable[[str], str]) -> Config:
    sources = {key: getattr(config.data, key) for key in ("source", "valid_source", "test_source")}
    renamed = {key: name(source) for key, source in sources.items() if source is not None}
    return config.model_copy(update={"data": config.data.model_copy(update=renamed)})


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
    return os.path.join(glob.escape(folder), source)  # noqa: PTH118


def _candidates(source: str, run_dir: Path) -> Iterator[str]:
    """Where a source may be that has moved together with the run, the nearest folder first."""
    parts = Path(_at_home(source)).relative_to(Path(_at_home(source)).anchor).parts
    # Only a name is looked for: a pattern such as **/*.txt would match anything.
    named = next((at for at, part in enumerate(parts) if _WILD.search(part)), len(parts))
    run_dir = run_dir.resolve()
    for folder in (run_dir, *run_dir.parents):
        for start in range(named):
            path = str(Path(folder, *parts[start:]))
            yield path if _exists(path) else str(Path(glob.escape(str(folder)), *parts[start:]))


_WILD = re.compile(r"(?<!\[)[*?]")  # glob.escape writes [*]


def _is_there(source: str) -> bool:
    if source.startswith(BUILTIN_PREFIX) or _exists(source):
        return True
    # Path.glob takes no absolute patterns.
    return glob.has_magic(source) and any(glob.iglob(_at_home(source), recursive=True))  # noqa: PTH207


def _exists(source: str) -> bool:
    try:
        return Path(_at_home(source)).exists()
    except (OSError, ValueError):  # ValueError: a null character
        return False


def _at_home(source: str) -> str:
    return os.path.expanduser(source)  # noqa: PTH111
