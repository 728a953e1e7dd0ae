"""What the shell offers for an incomplete argument. Everything here is cheap: no file is read whole, no torch."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path


def complete_config(incomplete: str) -> list[str]:
    """The names of shipped configs, and YAML files."""
    from charlm.config.shipped import shipped_configs

    names = [name for name in shipped_configs() if name.startswith(incomplete)]
    return names + _paths(incomplete, lambda path: path.suffix in (".yaml", ".yml"))


def complete_run(incomplete: str) -> list[str]:
    """Folders of runs, and checkpoint files."""
    from charlm.runs import is_run

    return _paths(incomplete, lambda path: path.suffix == ".safetensors" or is_run(path))


def _paths(incomplete: str, wanted: Callable[[Path], bool]) -> list[str]:
    """The wanted paths that start with `incomplete`, and the wanted entries of folders that start with it."""
    head = incomplete[: incomplete.rfind("/") + 1]
    found = []
    for path in _entries(head):
        if path.startswith(incomplete):
            found += [each for each in (path, *_entries(f"{path}/")) if wanted(Path(each))]
    return sorted(found)


def _entries(folder: str) -> Iterator[str]:
    """The paths in a folder ("" is the current one) without hidden ones; none if it cannot be read."""
    with suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield folder + entry.name
