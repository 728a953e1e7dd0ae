"""A cell as data, for the checkpoint of a cell that is not built in. Reading it runs no code.

Built-in kinds are not stored: their checkpoints follow the equations of the charlm that reads them.
"""

import contextlib
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import astuple
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, FailFast, ValidationError, create_model

from charlm.cells import CELLS, Cell
from charlm.cells.check import check, is_name, require
from charlm.cells.program import Node, Parameter, Program, Size
from charlm.errors import CellError
from charlm.system.section import Section

MOST_STATES = 64
LONGEST_KIND = 5000
MOST_OPTIONS = 200


class StoredCell(Cell):
    """A cell with programs from a checkpoint in place of `step`; or without programs, to show its options only."""

    stored: ClassVar[str] = ""
    """The JSON of `as_json`, or "" without programs."""
    programs: ClassVar[tuple[Program | None, Program | None]] = (None, None)
    """For layers whose number of inputs is not H, and for those with H inputs."""

    def program(self, square: bool) -> Program:
        if (program := self.programs[square]) is None:
            raise CellError(f"{self.name}: has no program for layers with H inputs or other numbers; {_SQUARE}")
        return program

    def __reduce__(self) -> Any:
        return restored, (self.model_dump(mode="json"), self.stored)


_SQUARE = "allowed: layers whose input has H units; set model.embedding to model.cell.hidden"


def as_json(cell: Cell) -> str:
    """The programs of a cell, and the attributes of its class. CellError if there is no program."""
    if isinstance(cell, StoredCell):
        return cell.stored
    programs: list[Any] = [None, _of_program(cell.program(square=True))]
    with contextlib.suppress(CellError):  # a cell that adds its input to its state has none
        programs[False] = _of_program(cell.program(square=False))
    record = {"states": list(cell.states), "internal": cell.internal, "initial": cell.initial, "programs": programs}
    return json.dumps(record, allow_nan=False, separators=(",", ":"))


def _of_program(program: Program) -> dict[str, Any]:
    return {
        "nodes": [list(astuple(node)) for node in program.nodes],
        "results": program.results,
        "parameters": program.parameters,
        "gates": program.gates,
        "shown": program.shown,
    }


def restored(section: Mapping[str, Any], stored: str) -> Cell:
    """The cell with the options of a config's section `model.cell`, and the programs in the JSON."""
    return stored_cell(section, stored).model_validate(dict(section))


def stored_cell(section: Mapping[str, Any], stored: str = "") -> type[StoredCell]:
    """The class of a cell that has the options of a config's section `model.cell`, and the programs in the JSON.

    ValueError if the JSON is damaged; it may be hostile. Without JSON the cell has no programs.
    """
    options = {name: value for name, value in section.items() if name not in ("kind", "hidden")}
    kind = section.get("kind")
    require(isinstance(kind, str) and 0 < len(kind) <= LONGEST_KIND, "a kind that is not text, or too long")
    return _class(kind, json.dumps(options), stored)


@functools.lru_cache(maxsize=32)
def _class(kind: str, options: str, stored: str) -> type[StoredCell]:
    named: dict[str, Any] = json.loads(options)
    require(len(named) <= MOST_OPTIONS, f"{len(named)} options; allowed: {MOST_OPTIONS}")
    for name in named:
        require(is_name(name) and not hasattr(StoredCell, name), f"an option {name[:40]!r}")
    attributes = _attributes(kind, stored) if stored else {}
    fields: dict[str, Any] = {name: (Annotated[Any, AfterValidator(_plain)], value) for name, value in named.items()}
    cell = create_model("StoredCell", __base__=StoredCell, kind=(Literal[kind], kind), **fields)  # pyright: ignore
    for name, value in attributes.items():
        setattr(cell, name, value)
    return cell


def _attributes(kind: str, stored: str) -> dict[str, Any]:
    """The attributes of a class, from the JSON."""
    name = kind.rpartition(".py:")[2]
    require(is_name(name) and name not in CELLS, f"a kind {kind[:40]!r}")
    try:
        raw = _StoredCell.model_validate_json(stored)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where, value = ".".join(map(str, fault["loc"])), fault["input"]
        kind_text = "nothing" if fault["type"] == "missing" else f"a {type(value).__name__}"
        value_text = f"{value!r:.40}" if isinstance(value, str | int | float) else kind_text
        raise ValueError(f"{where or 'the JSON'}: found {value_text}; {fault['msg']}") from None
    require(0 < len(set(raw.states)) == len(raw.states) <= MOST_STATES, "no, equal or too many states")
    require(all(map(is_name, (*raw.states, *raw.initial))), "states or initial options without proper names")
    require(len(raw.initial) <= MOST_OPTIONS, f"{len(raw.initial)} initial options; allowed: {MOST_OPTIONS}")
    require(set(raw.internal) < set(raw.states), "internal states that are no states, or all of them")
    programs = [None if each is None else _program(each, raw, bool(k)) for k, each in enumerate(raw.programs)]
    return raw.model_dump(exclude={"programs"}) | {"programs": tuple(programs), "stored": stored}


def _plain(value: Any) -> Any:
    """An option's value in a form that can be hashed; ValueError unless it is plain data."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        raise ValueError("found a section; allowed: single values, and lists of them")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"found {value}; allowed: finite numbers")
    return value


# The JSON. Its types are checked here, everything else by `check`.

_Strings = Annotated[tuple[str, ...], FailFast()]
_Named = Annotated[tuple[tuple[str, int], ...], FailFast()]
_Node = tuple[str, tuple[int, ...], int, Size, str, int, float]
_Parameter = tuple[str, int, Size, Size, int, Annotated[tuple[float | None, ...], FailFast()], float | None]


class _StoredProgram(Section):
    """A program; the states are the cell's."""

    nodes: Annotated[tuple[_Node, ...], FailFast()]
    results: Annotated[tuple[int, ...], FailFast()]
    parameters: Annotated[tuple[_Parameter, ...], FailFast()]
    gates: _Named
    shown: _Named


class _StoredCell(Section):
    """A cell; its programs as in `StoredCell`."""

    states: _Strings
    internal: _Strings
    initial: _Strings
    programs: tuple[_StoredProgram | None, _StoredProgram]


def _program(raw: _StoredProgram, cell: _StoredCell, square: bool) -> Program:
    nodes, parameters = (Node(*node) for node in raw.nodes), (Parameter(*parameter) for parameter in raw.parameters)
    program = Program(tuple(nodes), cell.states, raw.results, tuple(parameters), cell.internal, raw.gates, raw.shown)
    check(program, square)
    return program
