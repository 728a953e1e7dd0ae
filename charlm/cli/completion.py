"""What the shell offers for an incomplete argument. Everything here is cheap: no file is read whole, no torch."""

from collections.abc import Callable
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
    head, slash, start = incomplete.rpartition("/")
    matching = [path for path in _entries(Path(head + slash)) if path.name.startswith(start)]
    return sorted(str(each) for path in matching for each in (path, *_entries(path)) if wanted(each))


def _entries(folder: Path) -> list[Path]:
    """The paths in a folder without hidden ones; none if it cannot be read."""
    with suppress(OSError, ValueError):
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    return []
