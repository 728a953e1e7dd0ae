"""The config of a run: read from YAML, changed by overrides, and checked as a whole."""

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from charlm.cells import Cell
from charlm.config.cell_finder import CellFinder, as_data, check_traced, from_file, is_in_file, of_run
from charlm.config.faults import Source, fault_lines, show, written_at
from charlm.config.optimizers import Optimizer, Schedule
from charlm.config.schema import Config, config_with
from charlm.config.shipped import find_config, nearest_configs
from charlm.config.yaml import dump_yaml, load_yaml
from charlm.errors import CellError, ConfigError

__all__ = [
    "CellFinder", "Config", "as_data", "differences", "dump_config", "flatten", "from_file", "ignored_options",
    "is_in_file", "load_config", "of_run", "override_config", "parse_config", "read_config_file", "valid_overrides",
]  # fmt: skip

# Ten times the longest useful config. PyYAML takes a second and 50 MB for this size, and time and memory grow with it.
MAX_BYTES = 100_000
MAX_DEPTH = 8  # parts of an override's KEY; the schema has at most three


def load_config(file: Path, overrides: Iterable[str] = (), find_cell: CellFinder = from_file) -> Config:
    """Read a config file, or the shipped config of this name, and apply `a.b=VALUE` overrides.

    `find_cell` finds a cell that is not built in; by default it runs the Python file that the config names. The
    ConfigError names all faults at once.
    """
    return parse_config(
        read_config_file(file), str(file), overrides, folder=find_config(file).parent, find_cell=find_cell
    )


def read_config_file(file: Path) -> Any:
    """Read a file or shipped config as YAML; ConfigError if it cannot be read or is not YAML."""
    allowed = "allowed: a YAML file, or a name from `charlm config list`"
    try:
        with find_config(file).open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        near = " or ".join(map(repr, nearest_configs(file)))
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigError(f"{file}: found no such file; {allowed}{hint}") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; {allowed}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{file}: found more than {MAX_BYTES} bytes; allowed: a YAML config")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: found bytes that are not UTF-8 at offset {error.start}; allowed: UTF-8") from None
    return load_yaml(text, str(file))


def parse_config(
    raw: Any,
    where: str,
    overrides: Iterable[str] = (),
    *,
    folder: Path | None = None,
    find_cell: CellFinder = from_file,
) -> Config:
    """Make a config of a YAML value that was read from `where`; the value itself is not changed.

    folder: where the relative path of a cell's file starts; that of an override starts in the current folder. CellError
    for the step of such a cell that is not allowed.
    """
    raw = {} if raw is None else copy.deepcopy(raw)
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: found {type(raw).__name__}; allowed: sections such as data:, model:, train:")
    sources: list[Source] = [([()], where)]
    faults: list[str] = []
    for override in overrides:
        try:
            path, value = _parse_override(override)
            sources.append((_set(raw, path, value, override), f"--set {override}"))
        except ConfigError as error:
            faults += error.faults
    section: Any = raw
    for key in _KIND[:-1]:
        section = section.get(key) if isinstance(section, dict) else None
    schema = Config
    if isinstance(section, dict) and is_in_file(section.get("kind")):
        source = written_at(_KIND, sources)
        try:
            cell = find_cell(section["kind"], Path() if source.startswith("--set ") or not folder else folder, section)
        except CellError as error:
            raise ConfigError(*faults, f"{source}: model.cell.kind: {error}") from None
        section["kind"] = cell.model_fields["kind"].default
        schema = config_with(cell)
    try:
        config = schema.model_validate(raw)
    except ValidationError as error:
        faults += fault_lines(error, schema, raw, sources)
    else:
        if not faults:
            check_traced(config.model)
            return config
    raise ConfigError(*faults)


_KIND = ("model", "cell", "kind")
_KINDS = {_KIND: Cell, ("optimizer", "name"): Optimizer, ("optimizer", "schedule", "name"): Schedule}
"""The options that name the kind of a section → the options that all its kinds share."""


def override_config(config: Config, where: str, overrides: Iterable[str], find_cell: CellFinder = from_file) -> Config:
    """Apply overrides to a config from `where`. A section that changes its kind keeps only shared options.

    find_cell: finds another cell than the config's that is not built in.
    """
    raw = config.model_dump(mode="json")
    overrides = list(overrides)
    for _, path, kind in valid_overrides(overrides):
        if path in _KINDS:
            section = functools.reduce(dict.__getitem__, path[:-1], raw)
            if kind != section[path[-1]]:
                for key in section.keys() - _KINDS[path].model_fields.keys():
                    del section[key]
    cell = config.model.cell

    def same_or_other(kind: str, folder: Path, section: Mapping[str, Any]) -> type[Cell]:
        return type(cell) if kind == cell.kind else find_cell(kind, folder, section)

    return parse_config(raw, where, overrides, find_cell=same_or_other)


def ignored_options(config: Config) -> list[str]:
    """One line for each option that is set but has no effect."""
    model, dropout = config.model, config.model.dropout
    ignored: dict[str, str] = {}
    if model.layers == 1 and model.residual:
        ignored["model.residual"] = "with one layer; set model.layers above 1"
    # Equal values may come from a single number, which sets both places.
    if model.layers == 1 and dropout.between_layers not in (0, dropout.output):
        ignored["model.dropout.between_layers"] = "with one layer; set model.layers above 1"
    between_layers = model.layers > 1 and dropout.between_layers
    if dropout.variational and not (dropout.embedding or dropout.input or dropout.output or between_layers):
        ignored["model.dropout.variational"] = (
            "without dropout; set embedding, input, output, or between_layers with 2 layers or more"
        )
    values = flatten(config)
    if not model.cell.program(square=True).recurrent():
        because = f"with cell.kind: {model.cell.name}; it has no recurrent matrices"
        of_matrices = ("model.dropout.state", "model.dropout.weights", "model.orthogonal")
        ignored |= {key: because for key in of_matrices if values[key]}
    if config.data.unit == "line" and config.train.read_share < 1:
        ignored["train.read_share"] = "with data.unit: line; lines come in random order"
    return [f"{key}: found {show(values[key])}, which has no effect {reason}" for key, reason in ignored.items()]


def dump_config(config: Config) -> str:
    """Write a config as YAML text, with every option."""
    return dump_yaml(config.model_dump(mode="json"))


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """The options that differ: {"train.max_steps": (2000, 4000)}."""
    before, after = flatten(old), flatten(new)
    keys = list(dict.fromkeys([*before, *after]))
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


def flatten(config: Config) -> dict[str, Any]:
    """Every option by its dotted path: {"train.max_steps": 2000, …}."""
    return flatten_section(config.model_dump(mode="json"))


def flatten_section(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every option of a section by its path, which begins with `prefix`."""
    flat: dict[str, Any] = {}
    for key, value in section.items():
        flat |= flatten_section(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def valid_overrides(overrides: Iterable[str]) -> Iterator[tuple[str, tuple[str, ...], Any]]:
    """Each override with the path and the value of each option that it sets; `parse_config` names those at fault."""
    for override in overrides:
        try:
            path, value = _parse_override(override)
        except ConfigError:
            continue
        if isinstance(value, dict) and _is_merged(path):
            yield from ((override, (*path, key), value[key]) for key in value)
        else:
            yield override, path, value


def _is_merged(path: tuple[str, ...]) -> bool:
    """Whether a section that is set keeps its other options: one that names a kind is replaced."""
    return not any(kind[:-1] == path for kind in _KINDS)


def _parse_override(override: str) -> tuple[tuple[str, ...], Any]:
    """The path and the value of KEY=VALUE; the key may be that of a whole section. ConfigError if it is neither."""
    if len(override) > MAX_BYTES:
        raise ConfigError(f"--set {override[:60]}...: found {len(override)} characters; allowed: {MAX_BYTES}")
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path) or len(path) > MAX_DEPTH:
        raise ConfigError(f"--set {override}: found no KEY=VALUE; allowed: for example --set train.max_steps=500")
    return path, load_yaml(text, f"--set {override}")


def _set(raw: dict[str, Any], path: tuple[str, ...], value: Any, override: str) -> list[tuple[str, ...]]:
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
    before = section.get(path[-1])
    if isinstance(before, dict) and isinstance(value, dict) and _is_merged(path):
        before |= value
        return [(*path, key) for key in value]
    section[path[-1]] = value
    return created
