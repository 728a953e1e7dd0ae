"""Read a config from YAML, and change it by overrides; all its faults are one error."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from charlm.cells import Cell
from charlm.cells.cell import is_in_file
from charlm.cells.stored import StoredCell
from charlm.config.faults import Schema, Source, fault_lines, json_schema, written_at
from charlm.config.overrides import (
    CELL_KIND,
    SECTIONS_OF_KINDS,
    keep_shared_options,
    parse_overrides,
    section_of,
    set_option,
)
from charlm.config.schema import Config
from charlm.config.shipped import find_config, nearest_configs
from charlm.config.yaml import load_yaml
from charlm.errors import CellError, ConfigError
from charlm.runs import is_run
from charlm.system.files import encoding_fault, read_file

# Ten times the longest useful config. PyYAML takes a second and 50 MB for this size, and time and memory grow with it.
MAX_BYTES = 100_000


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

    Of a cell in a Python file, see `_own_cell`:
    cell: that of the run that the config is for; the config's must be the same, with other options.
    runs_file: whether the file is run. It must be for configs and overrides alone that a user typed, and is not for a
    config in a run's folder, which is data. Otherwise the cell has its options only.
    folder: that of the config, where the file's relative path starts; one in an override starts in the current folder.

    The ConfigError names all faults at once. CellError for the step of a cell that is not allowed.
    """
    raw = {} if raw is None else copy.deepcopy(raw)
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: found {type(raw).__name__}; allowed: sections such as data:, model:, train:")
    parsed, faults = parse_overrides(overrides)
    for _, path, value in parsed:
        if path in SECTIONS_OF_KINDS:
            keep_shared_options(raw, path, value, folder)
    sources: list[Source] = [([()], where)]
    for override, path, value in parsed:
        try:
            sources.append((set_option(raw, path, value, override), f"--set {override}"))
        except ConfigError as error:
            faults += error.faults

    own_cell: Cell | None = None
    section = section_of(raw, CELL_KIND)
    if section and is_in_file(section.get("kind")):
        source = written_at(CELL_KIND, sources)
        if source.startswith("--set "):
            folder = None
        try:
            own_cell = _own_cell(section["kind"], folder, cell, runs_file)
            section["kind"] = own_cell.kind
        except CellError as error:
            faults.append(f"{source}: model.cell.kind: {error}")
            keep_shared_options(raw, CELL_KIND, None)  # the rest is checked with the default kind
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


def _own_cell(kind: str, folder: Path | None, known: Cell | None, runs_file: bool) -> Cell:
    """The cell of a Python file: the known one, one that the file makes, or its options alone.

    folder: where the file's relative path starts; None: in the current folder. For the others see `parse_config`.
    """
    # The file of a known cell may have moved with the config.
    if known is not None and is_in_file(known.kind) and Path(kind).name == Path(known.kind).name:
        return known
    if not runs_file:
        if known is None:
            return StoredCell.model_construct(kind=kind)
        raise CellError(f"found {kind!r}; the run has {known.kind!r}; allowed: the same")
    if folder is not None and is_run(folder):
        raise CellError(
            f"found {kind!r} in the folder of a run, which is data; allowed: a file that is named by --set "
            "model.cell.kind=FILE.py:CLASS"
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
