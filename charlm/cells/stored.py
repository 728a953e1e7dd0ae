"""A cell as data: what a checkpoint holds of a cell that is not built in. Reading it runs no code.

Built-in kinds are not stored: charlm has their equations, and backends that know them by their class. So a checkpoint
of a built-in kind follows the equations of the charlm that reads it, as its kernels do.
"""

import contextlib
import functools
import json
import math
from collections.abc import Mapping
from dataclasses import astuple
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, FailFast, Field, ValidationError, create_model

from charlm.cells import CELLS, Cell
from charlm.cells.program import BINARY, OPERATIONS, STATIC, UNARY, Node, Parameter, Program, Size, when
from charlm.errors import CellError
from charlm.system.section import Section

MOST_NODES = 20_000
MOST_VECTORS = 30_000
"""Of all operations together."""
MOST_COUNT = 64
"""Vectors side by side."""
MOST_STACK = 1024
MOST_SIZE = 2**20
MOST_STATES = 64
LONGEST_NAME = 100
LONGEST_KIND = 5000
MOST_OPTIONS = 200


class StoredCell(Cell):
    """A cell without `step`, whose programs come from a checkpoint; or with neither, to show its options only."""

    stored: ClassVar[str] = ""
    """The JSON of `as_json`, or "" without programs."""
    programs: ClassVar[tuple[Program | None, Program | None]] = (None, None)
    """For layers with other numbers of inputs than H, and for those with H inputs."""

    def program(self, square: bool) -> Program:
        if (program := self.programs[square]) is None:
            raise CellError(f"{self.name}: has no program for layers with H inputs or other numbers; {_SQUARE}")
        return program

    def __reduce__(self) -> Any:
        return restored, (self.model_dump(mode="json"), self.stored)


_SQUARE = "allowed: layers whose input has H units; set model.embedding to model.cell.hidden"


def as_json(cell: Cell) -> str:
    """The programs of a cell, and what else its class says. CellError if there is no program."""
    if isinstance(cell, StoredCell):
        return cell.stored
    programs: list[Any] = [None, _of_program(cell.program(square=True))]
    with contextlib.suppress(CellError):  # a cell that adds its input to its state has none
        programs[False] = _of_program(cell.program(square=False))
    found = {"states": list(cell.states), "internal": cell.internal, "initial": cell.initial, "programs": programs}
    return json.dumps(found, allow_nan=False, separators=(",", ":"))


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
    _require(isinstance(kind, str) and 0 < len(kind) <= LONGEST_KIND, "a kind that is no text, or too long")
    return _class(kind, json.dumps(options), stored)


@functools.lru_cache(maxsize=32)
def _class(kind: str, options: str, stored: str) -> type[StoredCell]:
    named: dict[str, Any] = json.loads(options)
    _require(len(named) <= MOST_OPTIONS, f"{len(named)} options; allowed: {MOST_OPTIONS}")
    for name in named:
        _require(is_name(name) and not hasattr(StoredCell, name), f"an option {name[:40]!r}")
    attributes = _attributes(kind, stored) if stored else {}
    fields: dict[str, Any] = {name: (Annotated[Any, AfterValidator(_plain)], value) for name, value in named.items()}
    found = create_model("StoredCell", __base__=StoredCell, kind=(Literal[kind], kind), **fields)  # pyright: ignore
    for name, value in attributes.items():
        setattr(found, name, value)
    return found


def _attributes(kind: str, stored: str) -> dict[str, Any]:
    """What a class gets from the JSON."""
    name = kind.rpartition(".py:")[2]
    _require(is_name(name) and name not in CELLS, f"a kind {kind[:40]!r}")
    try:
        raw = _Stored.model_validate_json(stored)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        where, value = ".".join(map(str, fault["loc"])), fault["input"]
        what = "nothing" if fault["type"] == "missing" else f"a {type(value).__name__}"
        found = f"{value!r:.40}" if isinstance(value, str | int | float) else what
        raise ValueError(f"{where or 'the JSON'}: found {found}; {fault['msg']}") from None
    _require(0 < len(set(raw.states)) == len(raw.states) <= MOST_STATES, "no, equal or too many states")
    _require(set(raw.internal) < set(raw.states), "internal states that are no states, or all of them")
    programs = tuple(None if each is None else _program(each, raw, square) for square, each in enumerate(raw.programs))
    return raw.model_dump(exclude={"programs"}) | {"programs": programs, "stored": stored}


def _plain(value: Any) -> Any:
    """An option's value, which can be hashed; ValueError unless it is plain data."""
    if isinstance(value, list | tuple):
        return tuple(_plain(one) for one in value)
    if isinstance(value, dict):
        raise ValueError("found a section; allowed: single values, and lists of them")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"found {value}; allowed: finite numbers")
    return value


# What the JSON may hold


_LARGEST = 3e38
"""Numbers that float32 has."""
_Name = Annotated[str, Field(pattern="^[A-Za-z][A-Za-z0-9_]*$", max_length=LONGEST_NAME)]
_Names = Annotated[tuple[_Name, ...], FailFast(), Field(max_length=MOST_OPTIONS)]
_Vectors = Annotated[int, Field(ge=1, le=MOST_COUNT)]
_Size = Literal["H", "I", ""] | Annotated[int, Field(ge=1, le=MOST_SIZE)]
_Operation = Annotated[str, Field(pattern=f"^({'|'.join(OPERATIONS)})$")]
_Place = Annotated[int, Field(ge=0, le=MOST_NODES)]
_Index = Annotated[int, Field(ge=0, le=MOST_COUNT * MOST_STACK)]
_Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
_Places = Annotated[tuple[_Place, ...], Field(max_length=MOST_STATES)]
_Starts = Annotated[tuple[_Number | None, ...], FailFast(), Field(max_length=MOST_COUNT * MOST_STACK)]
_Node = tuple[_Operation, _Places, _Vectors, _Size, _Name | Literal[""], _Index, _Number]
_Parameter = tuple[_Name, _Vectors, _Size, _Size, Annotated[int, Field(ge=0, le=MOST_STACK)], _Starts, _Number | None]
_Named = Annotated[tuple[tuple[_Name, _Place], ...], FailFast(), Field(max_length=MOST_NODES)]


class _StoredProgram(Section):
    """A program; the states are the cell's."""

    nodes: Annotated[tuple[_Node, ...], FailFast(), Field(max_length=MOST_NODES)]
    results: _Places
    parameters: Annotated[tuple[_Parameter, ...], FailFast(), Field(max_length=MOST_NODES)]
    gates: _Named
    shown: _Named


class _Stored(Section):
    """A cell; its programs as in `StoredCell`."""

    states: _Names
    internal: _Names
    initial: _Names
    programs: tuple[_StoredProgram | None, _StoredProgram]


def _program(raw: _StoredProgram, cell: _Stored, square: int) -> Program:
    nodes, parameters = (Node(*one) for one in raw.nodes), (Parameter(*one) for one in raw.parameters)
    program = Program(tuple(nodes), cell.states, raw.results, tuple(parameters), cell.internal, raw.gates, raw.shown)
    check(program, bool(square))
    return program


def is_name(text: str) -> bool:
    return len(text) <= LONGEST_NAME and text.isascii() and text.isidentifier() and not text.startswith("_")


def _require(holds: bool, found: str) -> None:
    if not holds:
        raise ValueError(f"found {found}")


# What a program must be


def check(program: Program, square: bool) -> None:
    """ValueError unless every node fits its arguments, its parameter, and the limits above.

    square: whether H and I are the same number.
    """
    _require(0 < len(program.nodes) <= MOST_NODES, f"{len(program.nodes)} operations; allowed: up to {MOST_NODES}")
    vectors = sum(node.count for node in program.nodes)
    _require(vectors <= MOST_VECTORS, f"{vectors} vectors in all operations; allowed: up to {MOST_VECTORS}")
    declared = {parameter.name: parameter for parameter in program.parameters}
    _require(len(declared) == len(program.parameters), "a parameter twice")
    _require(len(declared) > 0, "no parameter")
    for parameter in program.parameters:
        _check_parameter(parameter)
    for place, node in enumerate(program.nodes):
        _require(all(arg < place for arg in node.args), f"operation {place}: an argument that comes after it")
        args = [program.nodes[arg] for arg in node.args]
        try:
            _check_node(node, args, program, declared.get(node.name), square)
        except ValueError as error:
            raise ValueError(f"operation {place}, {node.op}: {error}") from None
    _check_ends(program, square)
    unused = declared.keys() - {node.name for node in program.nodes if node.op in ("vector", "product")}
    _require(not unused, f"parameters that nothing uses: {', '.join(sorted(unused))[:80]}")


def _check_parameter(parameter: Parameter) -> None:
    name, gates, size, columns, stack, starts, bound = parameter
    _require(is_name(name), f"a parameter {name[:40]!r}; allowed: a name of letters, digits and _")
    _require(1 <= gates <= MOST_COUNT, f"{name}: {gates} gates; allowed: 1 to {MOST_COUNT}")
    _require(0 <= stack <= MOST_STACK, f"{name}: a stack of {stack}; allowed: up to {MOST_STACK}")
    _require(_fits(size) and size != "", f"{name}: a size {size!r}; allowed: H, I, or 1 to {MOST_SIZE}")
    _require(_fits(columns), f"{name}: {columns!r} columns; allowed: H, I, or 1 to {MOST_SIZE}")
    if columns != "":
        _require(not starts, f"{name}: initial values of a matrix")
    else:
        _require(len(starts) == gates * max(stack, 1), f"{name}: {len(starts)} initial values")
    _require(bound is None or 0 <= bound <= _LARGEST, f"{name}: a bound {bound}")
    finite = all(start is None or abs(start) <= _LARGEST for start in starts)
    _require(finite, f"{name}: an initial value that is not finite")


def _fits(size: Size) -> bool:
    return size in ("H", "I", "") if isinstance(size, str) else 1 <= size <= MOST_SIZE


def _check_node(node: Node, args: list[Node], program: Program, parameter: Parameter | None, square: bool) -> None:
    op = node.op
    arity = {"where": 3, **dict.fromkeys(BINARY, 2), **dict.fromkeys((*UNARY, *_OF_ONE), 1)}.get(op, 0)
    _require(len(args) == arity, f"{len(args)} arguments; allowed: {arity}")
    _require(1 <= node.count <= MOST_COUNT, f"{node.count} vectors; allowed: 1 to {MOST_COUNT}")
    _require(abs(node.number) <= _LARGEST, "a number that is not finite")
    _require((node.size == "") == (op == "constant"), "no size")
    if op in ("input", "state", "constant"):
        size = {"input": "I", "state": "H", "constant": ""}[op]
        _require((node.count, node.size) == (1, size), f"{node.count} × {node.size}; allowed: 1 × {size}")
        _require(op != "state" or node.name in program.states, f"a state {node.name!r}")
    elif op in ("vector", "product"):
        if parameter is None:
            raise ValueError(f"found no parameter {node.name!r}")
        _check_use(node, args, parameter)
    elif op == "part":
        fits = (node.count, node.size) == (1, args[0].size) and 0 <= node.index < args[0].count
        _require(fits, f"part {node.index} of {args[0].count} × {args[0].size}")
    elif op in ("normalize", "stop"):
        _require((node.count, node.size) == (args[0].count, args[0].size), "another size than its argument")
        _require(op == "stop" or (node.index in (0, 1) and node.number >= 0), "an epsilon below 0")
    else:
        counts, sizes = {arg.count for arg in args}, {arg.size for arg in args} - {""}
        _require(node.count == max(counts) and counts <= {1, node.count}, "vectors that do not fit")
        size = next(iter(sizes), "") if len(sizes) == 1 else "H" if square and sizes == {"H", "I"} else None
        _require(node.size == size, "sizes that do not fit")
    for position, arg in enumerate(args):
        decides = op == "part" or (op == "where" and position == 0)
        is_choice = is_condition(program, arg)
        _require(not is_choice or decides, "a comparison used as a number; allowed: where(comparison, a, b)")
        _require(is_choice or op != "where" or position > 0, "no comparison to choose by")


_OF_ONE = ("product", "part", "normalize", "stop")


def _check_use(node: Node, args: list[Node], parameter: Parameter) -> None:
    """A node that uses a parameter."""
    rows = max(parameter.stack, 1)
    _require(node.size == parameter.size, f"size {node.size} of {parameter.name}, which has {parameter.size}")
    if node.op == "vector":
        fits = parameter.columns == "" and 0 <= node.index <= rows * parameter.gates - node.count
        _require(fits, f"{parameter.name} used as another parameter than declared")
        return
    fits = parameter.columns == args[0].size != "" and node.count == parameter.gates and 0 <= node.index < rows
    _require(fits and args[0].count == 1, f"{parameter.name} used as another parameter than declared")


def is_condition(program: Program, node: Node) -> bool:
    """Whether a value says yes or no for each unit."""
    while node.op == "part":
        node = program.nodes[node.args[0]]
    return node.op == "greater"


def _check_ends(program: Program, square: bool) -> None:
    """Results, and what people look at."""
    _require(len(program.results) == len(program.states), f"{len(program.results)} results")
    kinds = when(program.nodes)
    hidden = ("H", "I") if square else ("H",)
    for name, place in (*zip(program.states, program.results, strict=True), *program.gates, *program.shown):
        _require(0 <= place < len(program.nodes), f"{name}: no operation {place}")
        node = program.nodes[place]
        _require(is_name(name), f"a name {name[:40]!r}")
        _require(node.count == 1 and node.size in hidden, f"{name}: {node.count} vectors of size {node.size!r}")
        _require(not is_condition(program, node), f"{name}: a comparison")
    _require(
        all(kinds[place] != STATIC for place in program.results), "a new state that depends on neither input nor state"
    )
