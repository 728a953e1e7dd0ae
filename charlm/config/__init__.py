"""The config of a run: read from YAML, changed by overrides, and checked as a whole."""

import copy
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from charlm.cells import Cell
from charlm.cells.cell import is_in_file
from charlm.cells.stored import StoredCell
from charlm.config.faults import Schema, Source, fault_lines, json_schema, show, written_at
from charlm.config.optimizers import Optimizer, Schedule
from charlm.config.schema import Config
from charlm.config.shipped import find_config, nearest_configs
from charlm.config.yaml import dump_flow, dump_yaml, load_yaml
from charlm.errors import CellError, ConfigError
from charlm.runs import is_run
from charlm.system.files import encoding_fault, read_file
from charlm.system.section import Section

__all__ = [
    "Config", "commented", "differences", "dump_config", "flatten", "ignored_options", "load_config", "parse_config",
    "valid_overrides",
]  # fmt: skip

# Ten times the longest useful config. PyYAML takes a second and 50 MB for this size, and time and memory grow with it.
MAX_BYTES = 100_000
MAX_DEPTH = 8  # parts of an override's KEY; the schema has at most three


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
    """Make a config of a YAML value that was read from `where`; the value itself is not changed.

    An override that changes the kind of a section drops the options in `raw` that not all kinds have.

    cell: the cell of the run that the config is for; a cell of one's own must then be the same, with other options.
    runs_file: whether a Python file with a cell is run. It must be for configs and overrides alone that a user typed.
    Otherwise a cell of one's own has its options only. folder: that of the config's file, where the relative path of
    the Python file starts; that of an override starts in the current folder. In a run's folder a config is data: it
    names no file that is run.

    The ConfigError names all faults at once. CellError for the step of a cell that is not allowed.
    """
    raw = {} if raw is None else copy.deepcopy(raw)
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: found {type(raw).__name__}; allowed: sections such as data:, model:, train:")
    parsed, faults = _parse_overrides(overrides)
    for _, path, value in parsed:
        if path in _KINDS:
            _keep_shared_options(raw, path, value, folder)
    sources: list[Source] = [([()], where)]
    for override, path, value in parsed:
        try:
            sources.append((_set(raw, path, value, override), f"--set {override}"))
        except ConfigError as error:
            faults += error.faults

    own_cell: Cell | None = None
    section = _section(raw, _CELL)
    if section and is_in_file(section.get("kind")):
        source = written_at(_CELL, sources)
        start = None if source.startswith("--set ") else folder
        try:
            own_cell = _find_cell(section["kind"], start, cell, runs_file)
            section["kind"] = own_cell.kind
        except CellError as error:
            faults.append(f"{source}: model.cell.kind: {error}")
            _keep_shared_options(raw, _CELL, None)  # the rest is checked with the default kind
            del section["kind"]
    try:
        config = Config.model_validate(raw, context=own_cell and {own_cell.kind: own_cell.with_options})
    except ValidationError as error:
        faults += fault_lines(error, _schema_with(own_cell), raw, sources)
    else:
        if not faults:
            if runs_file and own_cell is not None:
                config.model.cell.program(square=config.model.embedding in (0, config.model.cell.hidden))
            return config
    raise ConfigError(*faults)


_CELL = ("model", "cell", "kind")
_KINDS: dict[tuple[str, ...], tuple[type[Section], str]] = {
    _CELL: (Cell, "lstm"),
    ("optimizer", "name"): (Optimizer, "adamw"),
    ("optimizer", "schedule", "name"): (Schedule, "constant"),
}
"""The options that name the kind of a section → the options that all its kinds share, and the default."""


def _find_cell(kind: str, folder: Path | None, known: Cell | None, runs_file: bool) -> Cell:
    """A cell of a kind that is not built in, whose options do not count yet; see `parse_config`."""
    # The file of a known cell may have moved with the config.
    if known is not None and is_in_file(known.kind) and Path(kind).name == Path(known.kind).name:
        return known
    if runs_file:
        from charlm.cells.file import load_cell

        if folder is not None and is_run(folder):
            raise CellError(
                f"found {kind!r} in the folder of a run, which is data; allowed: a file that is named by --set "
                "model.cell.kind=FILE.py:CLASS"
            )
        return load_cell(kind, folder or Path())
    if known is not None:
        raise CellError(f"found {kind!r}; the run has {known.kind!r}; allowed: the same")
    return StoredCell.model_construct(kind=kind)


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


def ignored_options(config: Config) -> list[str]:
    """One line for each option that is set but has no effect."""
    model, values = config.model, flatten(config)
    ignored: dict[str, str] = {}
    if model.layers == 1:
        ignored["model.residual"] = "with one layer; set model.layers above 1"
    if not model.cell.program(square=True).recurrent():
        for key in ("model.dropout.state", "model.dropout.weights", "model.orthogonal"):
            ignored[key] = f"with cell.kind: {model.cell.name}; it has no recurrent matrices"
    return [
        f"{key}: found {show(values[key])}, which has no effect {reason}"
        for key, reason in ignored.items()
        if values[key]
    ]


def dump_config(config: Config) -> str:
    """Write a config as YAML text, with every option."""
    return dump_yaml(config.model_dump(mode="json"))


def commented(section: Section, indent: str = "") -> str:
    """The options that differ from their defaults as YAML, each with the first sentence of its help."""
    text = ""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        below = commented(value, f"{indent}  ") if isinstance(value, Section) else ""
        if below:
            text += f"{indent}{name}:\n{below}"
        elif isinstance(value, Section) or name in ("kind", "name") or value != field.default:
            written = {} if isinstance(value, Section) else [*value] if isinstance(value, tuple) else value
            line = f"{indent}{name}: {dump_flow(written)}"
            help = " ".join((field.description or "").split())
            text += f"{line:<35} # {_SENTENCE_END.split(help)[0].rstrip('.')}\n"
    return text


_SENTENCE_END = re.compile(r"(?<!\bet al)\. ")


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """The options that differ: {"train.max_steps": (2000, 4000)}; of cells of different kinds only the kind."""
    before, after = flatten(old), flatten(new)
    different = {}
    for key in before | after:
        is_other_cell = key.startswith("model.cell.") and old.model.cell.kind != new.model.cell.kind
        if before.get(key) != after.get(key) and (key == "model.cell.kind" or not is_other_cell):
            different[key] = before.get(key), after.get(key)
    return different


def flatten(values: Config | Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Every option of a config or a mapping by its dotted path: {"train.max_steps": 2000, …}."""
    flat: dict[str, Any] = {}
    for key, value in (values.model_dump(mode="json") if isinstance(values, Config) else values).items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


# Overrides


Override = tuple[str, tuple[str, ...], Any]
"""KEY=VALUE, the path of an option that it sets, and the value."""


def valid_overrides(overrides: Iterable[str]) -> list[Override]:
    """The options that overrides set; `parse_config` names the overrides at fault."""
    return _parse_overrides(overrides)[0]


def _parse_overrides(overrides: Iterable[str]) -> tuple[list[Override], list[str]]:
    """The options that overrides set, and the faults of those that set none.

    A section that is set keeps its other options, but one that names a kind is replaced.
    """
    parsed: list[Override] = []
    faults: list[str] = []
    replaced = [kind[:-1] for kind in _KINDS]
    for override in overrides:
        try:
            path, value = _parse_override(override)
        except ConfigError as error:
            faults += error.faults
            continue
        if isinstance(value, dict) and path not in replaced:
            parsed += [(override, (*path, key), value[key]) for key in value]
        else:
            parsed.append((override, path, value))
    return parsed, faults


def _parse_override(override: str) -> tuple[tuple[str, ...], Any]:
    """The path and the value of KEY=VALUE; the key may be that of a whole section. ConfigError if it is neither."""
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path) or len(path) > MAX_DEPTH:
        raise ConfigError(f"--set {override}: found no KEY=VALUE; allowed: for example --set train.max_steps=500")
    return path, load_yaml(text, f"--set {override}")


def _section(raw: Any, option: tuple[str, ...]) -> dict[str, Any] | None:
    """The section that an option is in, if there is one."""
    for key in option[:-1]:
        raw = raw.get(key) if isinstance(raw, dict) else None
    return raw if isinstance(raw, dict) else None


def _keep_shared_options(raw: dict[str, Any], option: tuple[str, ...], kind: Any, folder: Path | None = None) -> None:
    """Drop the options of another kind from the section whose kind an override sets. folder: see `parse_config`."""
    shared, default = _KINDS[option]
    section = _section(raw, option)
    if section and _in_full(kind, Path()) != _in_full(section.get(option[-1], default), folder or Path()):
        for key in section.keys() - shared.model_fields.keys():
            del section[key]


def _in_full(kind: Any, folder: Path) -> Any:
    """A kind; of a Python file the absolute path, so that one cell has one name."""
    if not is_in_file(kind):
        return kind
    from charlm.cells.file import absolute

    return str(absolute(folder, kind))


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
    section[path[-1]] = value
    return created
