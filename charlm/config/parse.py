"""Read a config from YAML, and change it by overrides; all its faults are one error."""

import copy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from charlm.cells import Cell
from charlm.cells.cell import is_in_file, same_file
from charlm.cells.stored import StoredCell
from charlm.config.optimizers import OPTIMIZERS, SCHEDULES, Optimizer, Schedule
from charlm.config.schema import CELL_KINDS, Config
from charlm.config.shipped import find_config, nearest_configs
from charlm.config.yaml import load_yaml
from charlm.errors import CellError, ConfigError
from charlm.runs import is_run
from charlm.system.faults import Schema, Written, fault_lines, json_schema, show, written_at
from charlm.system.files import encoding_fault, read_file
from charlm.system.section import Kinds, Section

OptionPath = tuple[str, ...]
Override = tuple[str, OptionPath, Any]
"""KEY=VALUE, the path of an option that it sets, and the value."""

# Ten times the longest useful config. PyYAML takes a second and 50 MB for this size, and time and memory grow with it.
MAX_BYTES = 100_000
_CELL_KIND = ("model", "cell", "kind")
_KINDS: dict[OptionPath, tuple[type[Section], Kinds]] = {
    _CELL_KIND: (Cell, CELL_KINDS),
    ("optimizer", "name"): (Optimizer, OPTIMIZERS),
    ("optimizer", "schedule", "name"): (Schedule, SCHEDULES),
}
"""The options that name the kind of a section → the options that all its kinds share, and the kinds."""
_MOST_PARTS = 8
"""Of a KEY; the schema has at most three."""


def load_config(
    file: Path, overrides: Iterable[str] = (), *, cell: Cell | None = None, runs_file: bool = False
) -> Config:
    """Read a config file, or the shipped config of this name, and apply `a.b=VALUE` overrides; see `parse_config`."""
    allowed = "allowed: a YAML file, or a name from `charlm config list`"
    path = find_config(file)
    try:
        data = read_file(path, MAX_BYTES)
    except FileNotFoundError:
        near = " or ".join(map(repr, nearest_configs(file)))
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigError(f"{file}: found no such file; {allowed}{hint}") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; {allowed}") from None
    if fault := encoding_fault(file, data):
        raise ConfigError(fault)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: found bytes that are not UTF-8 at offset {error.start}; allowed: UTF-8") from None
    raw = load_yaml(text, str(file))
    if isinstance(raw, str):
        raise ConfigError(f"{file}: found '{raw:.40}'; allowed: sections such as data:, model:, train:")
    return parse_config(raw, str(file), overrides, folder=path.parent, cell=cell, runs_file=runs_file)


def parse_config(
    raw: Any,
    where: str,
    overrides: Iterable[str] = (),
    *,
    folder: Path | None = None,
    cell: Cell | None = None,
    runs_file: bool = False,
) -> Config:
    """Make a config of a YAML value that was read from `where`; ConfigError with all its faults.

    An override that changes the kind of a section drops the options in `raw` that only some kinds have. For a cell in
    a Python file:

    cell       the run's cell, for a config that names its file. With runs_file it stands for files that a run's folder
               names only; else the config must name the same, perhaps with other options
    runs_file  whether the file is run: only if a user typed its path. In a run's folder a config is data, and its cell
               has options only
    folder     the config's, where the file's relative path starts; in an override, the current folder

    CellError for the step of a cell that is not allowed.
    """
    raw = {} if raw is None else copy.deepcopy(raw)
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: found {type(raw).__name__}; allowed: sections such as data:, model:, train:")
    parsed, faults = _parsed(overrides)
    for _, path, value in parsed:
        if path in _KINDS:
            _change_kind(raw, path, value, folder)
    written: Written = {(): where}
    for override, path, value in parsed:
        try:
            _set_option(raw, path, value, f"--set {override}", written)
        except ConfigError as error:
            faults += error.faults

    own_cell: Cell | None = None
    section = _section_of(raw, _CELL_KIND)
    if section and isinstance(kind := section.get("kind"), str) and (":" in kind or is_in_file(kind)):
        source = written_at(_CELL_KIND, written)
        try:
            own_cell = _own_cell(kind, folder if source == where else None, cell, runs_file)
            section["kind"] = own_cell.kind
        except CellError as error:
            faults.append(f"{source}: model.cell.kind: {error}")
            _drop_own_options(section, _CELL_KIND)  # the rest is checked with the default kind
            del section["kind"]
    try:
        config = Config.model_validate(raw, context=own_cell and {own_cell.kind: own_cell.with_options})
    except ValidationError as error:
        raise ConfigError(*faults, *fault_lines(error, _schema_with(own_cell), raw, written)) from None
    if faults:
        raise ConfigError(*faults)
    if runs_file and own_cell is not None:  # traces the step, for its errors
        config.model.cell.program(square=config.model.embedding in (0, config.model.cell.hidden))
    return config


def _own_cell(kind: str, folder: Path | None, known: Cell | None, runs_file: bool) -> Cell:
    """The cell of a Python file: the known one, one that the file makes, or its options alone; see `parse_config`."""
    if not is_in_file(kind):
        file, _, name = kind.rpartition(":")
        near = f"{file if '/' in file else f'./{file}'}.py:{name}"
        raise CellError(f"found {kind!r}; allowed: a built-in kind, or FILE.py:CLASS; did you mean {near!r}?")
    in_run = folder is not None and is_run(folder)
    if known is not None and same_file(kind, known.kind) and (in_run or not runs_file):
        return known.model_copy(update={"kind": _in_full(kind, folder or Path())})
    if not runs_file:
        if known is None:
            return StoredCell.model_construct(kind=kind)
        raise CellError(f"found {kind!r}; the run has {known.kind!r}; allowed: the same")
    if in_run:
        raise CellError(
            f"found {kind!r} in a run's folder, from which no code is run; allowed: --set model.cell.kind=FILE.py:CLASS"
        )
    from charlm.cells.file import load_cell

    return load_cell(kind, folder or Path())


def _schema_with(own_cell: Cell | None) -> Schema:
    """The JSON Schema of a config, which may also have this cell."""
    if own_cell is None:
        return json_schema(Config)
    schema = copy.deepcopy(json_schema(Config))
    known = json_schema(type(own_cell))["properties"]
    options = known | {name: {} for name in own_cell.model_extra or {}}
    kinds = schema["properties"]["model"]["properties"]["cell"]["discriminator"]["mapping"]
    kinds[own_cell.kind] = {"properties": options}
    return schema


# Overrides: KEY=VALUE


def valid_overrides(overrides: Iterable[str]) -> list[Override]:
    """The options that overrides set; `parse_config` names the overrides at fault."""
    return _parsed(overrides)[0]


def _parsed(overrides: Iterable[str]) -> tuple[list[Override], list[str]]:
    """The options that overrides set, and the faults of those that set none."""
    parsed: list[Override] = []
    faults: list[str] = []
    for override in overrides:
        key, equals, text = override.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path) or len(path) > _MOST_PARTS:
            allowed = "allowed: for example --set train.max_steps=500"
            faults.append(f"--set {override}: found no KEY=VALUE; {allowed}")
            continue
        try:
            value = load_yaml(text, f"--set {override}")
        except ConfigError as error:
            faults += error.faults
            continue
        parsed += [(override, *option) for option in _options_set(path, value)]
    return parsed, faults


def _options_set(path: OptionPath, value: Any) -> Iterator[tuple[OptionPath, Any]]:
    """The options that a value at this path sets: those of a section, or one that names a kind as a whole."""
    if isinstance(value, dict) and path not in [kind[:-1] for kind in _KINDS]:
        for key in value:
            yield from _options_set((*path, key), value[key])
    else:
        yield path, value


def _section_of(raw: Any, option: OptionPath) -> dict[str, Any] | None:
    """The section that an option is in, if there is one."""
    for key in option[:-1]:
        raw = raw.get(key) if isinstance(raw, dict) else None
    return raw if isinstance(raw, dict) else None


def _change_kind(raw: dict[str, Any], option: OptionPath, kind: Any, folder: Path | None) -> None:
    """Drop the options of another kind from the section whose kind an override sets. folder: see `parse_config`."""
    _, kinds = _KINDS[option]
    section = _section_of(raw, option)
    if not section:
        return
    old_kind = section.get(option[-1], kinds.default)
    if _in_full(kind, Path()) != _in_full(old_kind, folder or Path()):
        _drop_own_options(section, option)


def _drop_own_options(section: dict[str, Any], option: OptionPath) -> None:
    """Drop the options that not all kinds of a section have. option: the one that names the kind."""
    shared, _ = _KINDS[option]
    for key in section.keys() - shared.model_fields.keys():
        del section[key]


def _in_full(kind: Any, folder: Path) -> Any:
    """A kind; of a Python file the absolute path, so that one cell has one name."""
    if not is_in_file(kind):
        return kind
    from charlm.cells.file import absolute

    return str(absolute(folder, kind))


def _set_option(raw: dict[str, Any], path: OptionPath, value: Any, name: str, written: Written) -> None:
    """Set the value at `path`, and note in `written` that this override wrote it, and missing sections above it."""
    section = raw
    for depth, key in enumerate(path[:-1], start=1):
        if section.get(key) is None:
            section[key] = {}
            written[path[:depth]] = name
        section = section[key]
        if not isinstance(section, dict):
            above = ".".join(map(str, path[:depth]))
            raise ConfigError(
                f"{name}: found {above}: {show(section)}, which has no keys; allowed: --set {above}=VALUE"
            )
    section[path[-1]] = value
    for below in [each for each in written if each[: len(path)] == path]:
        del written[below]
    written[path] = name
