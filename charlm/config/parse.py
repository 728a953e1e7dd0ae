"""Make a config of YAML and of settings over it, typed or given by a program; all its faults are one error."""

import copy
import difflib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from charlm.cells import Cell
from charlm.cells.cell import is_in_file, same_file
from charlm.cells.file import absolute, load_cell
from charlm.cells.stored import StoredCell
from charlm.config.listing import flatten
from charlm.config.optimizers import OPTIMIZERS, SCHEDULES
from charlm.config.schema import CELL_KINDS, Config
from charlm.config.yaml import dump_flow, load_yaml
from charlm.errors import CellError, ConfigError
from charlm.runs import is_run
from charlm.system.faults import Written, fault_lines, json_schema, show, written_at
from charlm.system.files import encoding_fault, lfs_fault, read_file

OwnCell = Callable[[str], Cell]
"""Makes the cell of a kind in a Python file: `load_cell`, which runs the file, or one of the functions below."""

Settings = Mapping[str, Any]
"""Options by their dotted paths: {"train.max_steps": 500}; see `merged`."""
KINDS = {"model.cell": CELL_KINDS, "optimizer": OPTIMIZERS, "optimizer.schedule": SCHEDULES}
"""The sections that have kinds."""
_MOST_PARTS = 8
"""Of the path of an option; the schema has at most three."""
# Ten times the longest useful config. PyYAML takes a second and 50 MB for this size, and time and memory grow with it.
MAX_BYTES = 100_000


# A cell in a Python file. charlm runs the file only where a user typed its path.


def options_only(kind: str) -> Cell:
    """A cell with any options and without a step."""
    return StoredCell.model_construct(kind=kind)


def cell_of_run(cell: Cell) -> OwnCell:
    """For a file of the same name as a run's cell: this cell, wherever the file is now."""

    def own_cell(kind: str) -> Cell:
        return cell.model_copy(update={"kind": _in_full(kind)}) if same_file(kind, cell.kind) else options_only(kind)

    return own_cell


def refused(kind: str) -> Cell:
    """No cell: a config in a run's folder is data."""
    raise CellError(
        f"found {kind!r} in a run's folder, from which no code is run; allowed: --set model.cell.kind=FILE.py:CLASS"
    )


def cell_of_config(file: Path, settings: Settings, in_run: OwnCell = refused) -> OwnCell:
    """`load_cell`, or for a config in a run's folder `in_run`, unless the settings name the cell."""
    is_typed = "model.cell.kind" in settings or "model.cell" in settings
    return in_run if is_run(file.parent) and not is_typed else load_cell


# Configs


def shipped_configs() -> dict[str, Path]:
    """Name → file of every config that comes with charlm, sorted: in a wheel in the package, else in configs/."""
    package = Path(__file__).parents[1]
    inside = package / "configs"
    folder = inside if inside.is_dir() else package.parent / "configs"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def purpose(file: Path) -> str:
    """What a shipped config is for: the comment on its first line."""
    with file.open(encoding="utf-8") as lines:
        return lines.readline().removeprefix("#").strip()


def load_config(file: Path, settings: Mapping[str, Any] = {}, own_cell: OwnCell = options_only) -> Config:
    """Read a config file, or the shipped config of this name; see `parse_config`."""
    allowed = "allowed: a YAML file, or a name from `charlm config list`"
    shipped = shipped_configs()
    try:
        path = file if file.is_file() else shipped.get(str(file), file)
        data = read_file(path, MAX_BYTES)
    except FileNotFoundError:
        names = [file.stem] if file.stem in shipped else difflib.get_close_matches(str(file)[:100], shipped)
        near = " or ".join(map(repr, names))
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigError(f"{file}: found no such file; {allowed}{hint}") from None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; {allowed}") from None
    if fault := lfs_fault(file, data) or encoding_fault(file, data):
        raise ConfigError(fault)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: found bytes that are not UTF-8 at offset {error.start}; allowed: UTF-8") from None
    raw = load_yaml(text, str(file))
    section = _section_at(raw, "model.cell")
    if "kind" in section:
        section["kind"] = _in_full(section["kind"], path.parent)
    return parse_config(raw, str(file), settings, own_cell)


def parse_config(raw: Any, where: str, settings: Mapping[str, Any] = {}, own_cell: OwnCell = options_only) -> Config:
    """Make a config of a YAML value that was read from `where`, and settings over it; ConfigError with all its faults.

    A setting that changes the kind of a section drops the options in `raw` that only some kinds have. The relative
    path of a cell's file starts in the current folder. CellError for the step of a cell that is not allowed.
    """
    raw = {} if raw is None else copy.deepcopy(raw)
    if not isinstance(raw, dict):
        found = f"'{raw:.40}'" if isinstance(raw, str) else type(raw).__name__
        raise ConfigError(f"{where}: found {found}; allowed: sections such as data:, model:, train:")
    written: Written = {(): where}
    faults = _apply(settings, raw, written)
    section = _section_at(raw, "model.cell")
    kind = section.get("kind")
    has_own_cell = isinstance(kind, str) and (":" in kind or is_in_file(kind))
    if has_own_cell:
        raw["model"]["cell"], cell_faults = _with_own_cell(section, own_cell, written)
        faults += cell_faults
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(*faults, *fault_lines(error, json_schema(Config), raw, written)) from None
    if faults:
        raise ConfigError(*faults)
    cell = config.model.cell
    if has_own_cell and not isinstance(cell, StoredCell):  # traces the step, for its errors
        cell.program(square=config.model.embedding in (0, cell.hidden))
    return config


def _with_own_cell(section: dict[str, Any], own_cell: OwnCell, written: Written) -> tuple[Cell, list[str]]:
    """The cell of a section whose kind is not built in, and its faults."""
    kind, path = section["kind"], ("model", "cell")
    try:
        if not is_in_file(kind):
            file, _, name = kind.rpartition(":")
            near = f"{file if '/' in file else f'./{file}'}.py:{name}"
            raise CellError(f"found {kind!r}; allowed: a built-in kind, or FILE.py:CLASS; did you mean {near!r}?")
        cell = own_cell(kind)
    except CellError as error:
        return options_only(kind), [f"{written_at((*path, 'kind'), written)}: model.cell.kind: {error}"]
    try:
        return cell.with_options({**section, "kind": cell.kind}), []
    except ValidationError as error:
        options = json_schema(type(cell))["properties"] | {name: {} for name in cell.model_extra or ()}
        return cell, fault_lines(error, {"properties": options}, section, written, path)


def _section_at(raw: Any, path: str) -> dict[str, Any]:
    """The section at a dotted path; empty if there is none."""
    for key in path.split("."):
        raw = raw.get(key) if isinstance(raw, dict) else None
    return raw if isinstance(raw, dict) else {}


def _in_full(kind: Any, folder: Path = Path()) -> Any:
    """A kind; of a Python file the absolute path, so that one cell has one name."""
    return str(absolute(folder, kind)) if is_in_file(kind) else kind


# Settings


def read_settings(texts: Iterable[str]) -> dict[str, Any]:
    """The settings that a person typed as KEY=VALUE; ConfigError with a line for each text that is none."""
    settings: list[Settings] = []
    faults: list[str] = []
    for text in texts:
        key, equals, value = text.partition("=")
        parts = key.strip().split(".")
        if not equals or not all(parts) or len(parts) > _MOST_PARTS:
            faults.append(f"--set {text}: found no KEY=VALUE; allowed: for example --set train.max_steps=500")
            continue
        try:
            settings.append({key.strip(): load_yaml(value, f"--set {text}")})
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(*faults)
    return merged(*settings)


def merged(*settings: Settings) -> dict[str, Any]:
    """One mapping of several; later ones win. A section becomes its options, unless it names its kind."""
    options: dict[str, Any] = {}
    for each in settings:
        given = flatten(each, whole=KINDS)
        for section, kinds in KINDS.items():
            if isinstance(given.get(section), dict) and kinds.tag not in given[section]:
                given |= flatten(given.pop(section), f"{section}.", whole=KINDS)
        for key, value in given.items():
            for replaced in [name for name in options if f"{name}.".startswith(f"{key}.")]:
                del options[replaced]
            options[key] = value
    return options


def _apply(settings: Settings, raw: dict[str, Any], written: Written) -> list[str]:
    """Set the options in `raw`, and note in `written` what wrote them and missing sections above; returns faults."""
    for key, kinds in KINDS.items():
        section = _section_at(raw, key)
        kind = section.get(kinds.tag, kinds.default)
        if _in_full(settings.get(f"{key}.{kinds.tag}", kind)) != _in_full(kind):
            for foreign in section.keys() - kinds.shared:
                del section[foreign]
    faults: list[str] = []
    for option, value in settings.items():
        name = f"--set {option}={dump_flow(value)}"
        path = tuple(option.split("."))
        section = raw
        for depth, key in enumerate(path[:-1], start=1):
            if section.get(key) is None:
                section[key] = {}
                written[path[:depth]] = name
            section = section[key]
            if not isinstance(section, dict):
                above = ".".join(path[:depth])
                allowed = f"allowed: --set {above}=VALUE"
                faults.append(f"{name}: found {above}: {show(section)}, which has no keys; {allowed}")
                break
        else:
            section[path[-1]] = copy.deepcopy(value)
            written[path] = name
    return faults
