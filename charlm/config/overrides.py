"""Overrides: KEY=VALUE, and the options that they set."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from charlm.cells import Cell
from charlm.cells.cell import is_in_file
from charlm.config.faults import show
from charlm.config.optimizers import OPTIMIZERS, SCHEDULES, Optimizer, Schedule
from charlm.config.schema import CELL_KINDS
from charlm.config.yaml import load_yaml
from charlm.errors import ConfigError
from charlm.system.section import Kinds, Section

Override = tuple[str, tuple[str, ...], Any]
"""KEY=VALUE, the path of an option that it sets, and the value."""

CELL_KIND = ("model", "cell", "kind")
SECTIONS_OF_KINDS: dict[tuple[str, ...], tuple[type[Section], Kinds]] = {
    CELL_KIND: (Cell, CELL_KINDS),
    ("optimizer", "name"): (Optimizer, OPTIMIZERS),
    ("optimizer", "schedule", "name"): (Schedule, SCHEDULES),
}
"""The options that name the kind of a section → the options that all its kinds share, and the kinds."""
_MOST_PARTS = 8
"""Of a KEY; the schema has at most three."""


def valid_overrides(overrides: Iterable[str]) -> list[Override]:
    """The options that overrides set; `parse_config` names the overrides at fault."""
    return parse_overrides(overrides)[0]


def parse_overrides(overrides: Iterable[str]) -> tuple[list[Override], list[str]]:
    """The options that overrides set, and the faults of those that set none.

    A section that is set keeps its other options, but one that names a kind is replaced.
    """
    parsed: list[Override] = []
    faults: list[str] = []
    for override in overrides:
        try:
            path, value = _parse_override(override)
        except ConfigError as error:
            faults += error.faults
            continue
        parsed += [(override, *option) for option in _options_set(path, value)]
    return parsed, faults


def _options_set(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The options that a value at this path sets: those of a section, or one that names a kind as a whole."""
    if isinstance(value, dict) and path not in [kind[:-1] for kind in SECTIONS_OF_KINDS]:
        for key in value:
            yield from _options_set((*path, key), value[key])
    else:
        yield path, value


def _parse_override(override: str) -> tuple[tuple[str, ...], Any]:
    """The path and the value of KEY=VALUE; the key may be that of a whole section. ConfigError if it is neither."""
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path) or len(path) > _MOST_PARTS:
        raise ConfigError(f"--set {override}: found no KEY=VALUE; allowed: for example --set train.max_steps=500")
    return path, load_yaml(text, f"--set {override}")


def section_of(raw: Any, option: tuple[str, ...]) -> dict[str, Any] | None:
    """The section that an option is in, if there is one."""
    for key in option[:-1]:
        raw = raw.get(key) if isinstance(raw, dict) else None
    return raw if isinstance(raw, dict) else None


def keep_shared_options(raw: dict[str, Any], option: tuple[str, ...], kind: Any, folder: Path | None = None) -> None:
    """Drop the options of another kind from the section whose kind an override sets. folder: see `parse_config`."""
    shared, kinds = SECTIONS_OF_KINDS[option]
    section = section_of(raw, option)
    if section and _in_full(kind, Path()) != _in_full(section.get(option[-1], kinds.default), folder or Path()):
        for key in section.keys() - shared.model_fields.keys():
            del section[key]


def _in_full(kind: Any, folder: Path) -> Any:
    """A kind; of a Python file the absolute path, so that one cell has one name."""
    if not is_in_file(kind):
        return kind
    from charlm.cells.file import absolute

    return str(absolute(folder, kind))


def set_option(raw: dict[str, Any], path: tuple[str, ...], value: Any, override: str) -> list[tuple[str, ...]]:
    """Set the value at `path`; return the paths that this creates: its own, and those of missing sections above it."""
    section, created = raw, [path]
    for depth, key in enumerate(path[:-1], start=1):
        if section.get(key) is None:
            section[key] = {}
            created.append(path[:depth])
        section = section[key]
        if not isinstance(section, dict):
            name = ".".join(path[:depth])
            fault = f"found {name}: {show(section)}, which has no keys; allowed: --set {name}=VALUE"
            raise ConfigError(f"--set {override}: {fault}")
    section[path[-1]] = value
    return created
