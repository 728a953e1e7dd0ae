"""A cell as data, for the checkpoint of a cell that is not built in. Reading it runs no code.

Built-in kinds are not stored: their checkpoints follow the equations of the charlm that reads them.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, FailFast, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from charlm.cells import CELLS, Cell
from charlm.cells.cell import is_in_file, plain
from charlm.cells.check import check, is_name, require
from charlm.cells.program import Node, Parameter, Program, Size, without_arrays
from charlm.errors import CellError
from charlm.system.files import read_file
from charlm.system.section import Section

LONGEST_KIND = 5000
MOST_OPTIONS = 200
MOST_BYTES = 1_000_000
"""Of a cell's file."""


class StoredCell(Cell):
    """A cell with programs from a checkpoint in place of `step`; or without programs, to show its options only."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(plain)]]  # pyright: ignore

    _programs: tuple[Program | None, Program | None] = (None, None)
    """See `Cell.programs`."""
    _initial: tuple[str, ...] = ()
    _source: Mapping[str, str] = {}
    """See `SOURCES`, when the run began."""

    @model_validator(mode="after")
    def _has_plain_names(self) -> "StoredCell":
        options = self.model_extra or {}
        require(0 < len(self.kind) <= LONGEST_KIND, "a kind that is empty or too long")
        require(len(options) <= MOST_OPTIONS, f"{len(options)} options; allowed: {MOST_OPTIONS}")
        for name in options:
            require(is_name(name) and not hasattr(StoredCell, name), f"an option {name[:40]!r}")
        return self

    @property
    def states(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        square = self._programs[1]
        return square.states if square else Cell.states

    @property
    def internal(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        square = self._programs[1]
        return square.internal if square else ()

    @property
    def initial(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._initial

    def program(self, square: bool) -> Program:
        if self._programs[1] is None:
            raise CellError(f"{self.name}: found a cell's options without its step; allowed: a cell's file")
        if (program := self._programs[square]) is None:
            raise CellError(
                f"{self.name}: found a layer whose input size is not H; allowed: H for this cell; set model.embedding "
                "to model.cell.hidden"
            )
        return program

    def with_options(self, section: Mapping[str, Any]) -> "StoredCell":
        """The cell with a section's options, its own for the rest. ValidationError for others, if it has programs."""
        options = self.model_dump()
        unknown = [name for name in section if name not in options]
        if unknown and self._programs[1]:
            faults = [InitErrorDetails(type="extra_forbidden", loc=(name,), input=section[name]) for name in unknown]
            raise ValidationError.from_exception_data("StoredCell", faults)
        changed = StoredCell.model_validate(options | dict(section))
        changed.__pydantic_private__ = self.__pydantic_private__
        return changed

    def with_programs(self, stored: str) -> "StoredCell":
        """The cell with the programs in the JSON of `as_json`; ValueError if it is damaged. It may be hostile."""
        name = self.kind.rpartition(".py:")[2]
        require(is_name(name) and name not in CELLS, f"a kind {self.kind[:40]!r}")
        try:
            raw = _Stored.model_validate_json(stored)
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, fault["loc"])) or "the JSON"
            value = fault["input"]
            if isinstance(value, str | int | float):
                found = f"{value!r:.40}"
            elif fault["type"] == "missing":
                found = "nothing"
            else:
                found = f"a {type(value).__name__}"
            raise ValueError(f"the programs of {name}: {where}: found {found}; {fault['msg']}") from None
        for names in (raw.states, raw.internal, raw.initial):
            require(len(set(names)) == len(names), "equal states, or equal initial options")
        require(all(map(is_name, (*raw.states, *raw.initial))), "states or initial options without proper names")
        require(set(raw.initial) <= (self.model_extra or {}).keys(), "initial options that are no options")
        require(set(raw.internal) < set(raw.states), "internal states that are no states, or all of them")
        general, square = raw.programs
        programs = general and _program(general, raw, square=False), _program(square, raw, square=True)
        return self.with_step(programs, raw.initial, raw.source)

    def with_step(
        self, programs: tuple[Program | None, Program], initial: tuple[str, ...], source: Mapping[str, str]
    ) -> "StoredCell":
        """The cell with these programs, and attributes of its class."""
        cell = self.model_copy()
        cell._programs, cell._initial, cell._source = programs, initial, source
        return cell


SOURCES: dict[str, dict[str, str]] = {}
"""What the cells of a file were made of: its path → each file, relative to its folder, and the SHA-256 of its text."""


def _step_of(cell: Cell) -> tuple[tuple[Program | None, Program], tuple[str, ...], Mapping[str, str]]:
    """The arguments of `with_step`. CellError if there is no program."""
    source = cell._source if isinstance(cell, StoredCell) else SOURCES.get(cell.kind.rpartition(":")[0], {})
    return cell.programs(), cell.initial, source


def as_json(cell: Cell) -> str:
    """The programs of a cell, and the attributes of its class. CellError if there is no program."""
    both, initial, source = _step_of(cell)
    programs = [None if program is None else _of_program(program) for program in both]
    record = {"states": list(cell.states), "internal": cell.internal, "initial": initial, "source": source}
    return json.dumps(record | {"programs": programs}, allow_nan=False, separators=(",", ":"))


def is_edited(cell: Cell) -> bool:
    """Whether a file of a run's cell has changed since the run began. A file that is gone has not."""
    source = cell._source if isinstance(cell, StoredCell) else {}
    folder = Path(cell.kind.rpartition(":")[0]).parent
    return any(digest_of_file(folder / name) not in ("", digest) for name, digest in source.items())


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file; "" if it cannot be read."""
    try:
        return hashlib.sha256(read_file(path, MOST_BYTES)).hexdigest()
    except (OSError, ValueError):
        return ""


def _of_program(program: Program) -> dict[str, Any]:
    return {
        "nodes": [list(astuple(node)) for node in program.nodes],
        "results": program.results,
        "parameters": [one._replace(starts=without_arrays(one.starts)) for one in program.parameters],
        "gates": program.gates,
        "shown": program.shown,
    }


def with_step_of_now(cell: Cell) -> Cell:
    """A cell of a file with the programs of its step as it is now, whatever happens to the globals that it reads."""
    return _with_step(cell.model_dump(mode="json"), *_step_of(cell)) if is_in_file(cell.kind) else cell


def _with_step(section: Mapping[str, Any], *step: Any) -> StoredCell:
    return StoredCell.model_validate(section).with_step(*step)


def reduced(cell: Cell) -> tuple[Any, ...]:
    """A cell of a file as its programs, for pickle."""
    return _with_step, (cell.model_dump(mode="json"), *_step_of(cell))


# The JSON. Its types are checked here, everything else by `check`.

_Strings = Annotated[tuple[str, ...], FailFast()]
_Named = Annotated[tuple[tuple[str, int], ...], FailFast()]
_Node = tuple[str, tuple[int, ...], int, Size, str, int, float, bool]
_Starts = Annotated[tuple[float | str | None, ...], FailFast()]
_Parameter = tuple[str, int, Size, Size, int, _Starts, float | None, bool]


class _StoredProgram(Section):
    """A program; the states are the cell's."""

    nodes: Annotated[tuple[_Node, ...], FailFast()]
    results: Annotated[tuple[int, ...], FailFast()]
    parameters: Annotated[tuple[_Parameter, ...], FailFast()]
    gates: _Named
    shown: _Named


class _Stored(Section):
    """A cell; its programs as in `StoredCell`."""

    states: _Strings
    internal: _Strings
    initial: _Strings
    source: dict[str, str]
    programs: tuple[_StoredProgram | None, _StoredProgram]


def _program(raw: _StoredProgram, cell: _Stored, *, square: bool) -> Program:
    nodes = tuple(Node(*node) for node in raw.nodes)
    parameters = tuple(Parameter(*parameter) for parameter in raw.parameters)
    program = Program(nodes, cell.states, raw.results, parameters, cell.internal, raw.gates, raw.shown)
    check(program, square)
    return program
