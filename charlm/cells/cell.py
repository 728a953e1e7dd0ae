"""What a person writes: a subclass of `Cell` with its options and one `step`, which calls what is in step.py."""

import contextlib
import functools
import inspect
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from charlm.cells.check import check, is_name
from charlm.cells.program import MOST_SIZE, Node, Program
from charlm.cells.split import equations_only
from charlm.cells.step import Parameters
from charlm.cells.symbols import Value
from charlm.errors import CellError
from charlm.system.faults import fault_lines, json_schema, nearest
from charlm.system.section import Section, Whole


class Cell(Section):
    """A recurrent cell: its options, and the equations of one step.

    Options are annotated attributes with a default; the text below one is its help. `step` is the only place where
    the equations stand: it runs on tensors, and charlm traces it for each model to derive everything else.
    """

    states: ClassVar[tuple[str, ...]] = ("h",)
    """Names of the state's vectors, each of H units; the first is the output."""
    internal: ClassVar[tuple[str, ...]] = ()
    """States without a meaning of their own: they start from zeros, zoneout skips them, and pages do not show them."""
    initial: ClassVar[tuple[str, ...]] = ()
    """Options that only set initial values, so a run that starts from trained weights may change them."""
    meanings: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Names on pages for states, candidates and gates; for a gate also its effect at 0 and at 1. Not in checkpoints."""

    model_config = ConfigDict(validate_default=True)

    kind: str = ""
    """The name of a built-in kind, or FILE.py:CLASS."""
    hidden: Annotated[int, Field(ge=1, le=MOST_SIZE), Whole] = 256
    """Hidden units of each layer, H."""

    def __init__(self, *values: Any, **options: Any) -> None:
        """A cell with these options. TypeError for a value without a name; ValueError with a line for each fault."""
        name = type(self).__name__
        if values:
            raise TypeError(f"{name}: found {values[0]!r:.40} without a name; allowed: options by name, as hidden=16")
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise ValueError("\n".join(fault_lines(error, json_schema(type(self)), options, {(): name}))) from None

    # So pydantic does not call it to validate a section.
    __init__.__pydantic_base_init__ = True  # pyright: ignore[reportFunctionMemberAccess]

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if not cls.__module__.startswith("charlm.cells."):
            _check_names(cls)

    @field_validator("hidden")
    @classmethod
    def _is_count(cls, hidden: Any) -> Any:
        """For a class that gives `hidden` a type of its own."""
        if type(hidden) is not int or not 1 <= hidden <= MOST_SIZE:
            raise ValueError(f"found {hidden!r:.40}; allowed: an integer ≥ 1 and ≤ {MOST_SIZE:,}")
        return hidden

    @field_validator("*")
    @classmethod
    def _is_plain(cls, value: Any) -> Any:
        """Checkpoints keep options as plain data."""
        plain(value)
        return value

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Another process may lack the class of a cell that is not built in: it gets the programs instead."""
        if not is_in_file(self.kind):
            return super().__reduce_ex__(protocol)
        from charlm.cells.stored import reduced  # which imports this file

        return reduced(self)

    def with_options(self, section: Mapping[str, Any]) -> "Cell":
        """A cell of this class with the options of a config's section; ValidationError if they are not allowed."""
        return type(self).model_validate(dict(section))

    @property
    def name(self) -> str:
        """The kind; of a class in a file only the class name."""
        return self.kind.rpartition(":")[2] or type(self).__name__

    def program(self, square: bool) -> Program:
        """The program of `step` in a layer; square: with as many inputs as hidden units. CellError if it has none."""
        step = type(self).step
        # Those of built-in kinds read no globals that change, and not `hidden`.
        if all(one.__module__.startswith("charlm.cells.") for one in (type(self), step)):
            alike: Any = self.model_copy(update={"hidden": 1})
            return _trace_once(alike, step, square)
        return trace(self, square)

    def programs(self) -> "tuple[Program | None, Program]":
        """The programs (general, square): for layers with any number of inputs, and with H. CellError without square.

        general is None for a step that adds its input to its state.
        """
        square, general = self.program(square=True), None
        with contextlib.suppress(CellError):
            general = self.program(square=False)
        return general, square

    def options(self) -> dict[str, Any]:
        """The options that only this kind has."""
        return self.model_dump(exclude={"kind", "hidden"})

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """step(p, x, *states): the states after a step, from its input x and the states before it.

        p: the layer's parameters, see `Parameters`. Vectors are tensors [B, I] (x) and [B, H]; several side by side are
        [gates, B, H], and unpack into vectors.
        """
        raise NotImplementedError


def plain(value: Any) -> Any:
    """An option's value, with tuples for lists; ValueError unless it is a single value or lists of them."""
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    if isinstance(value, dict | set | frozenset | BaseModel):
        raise ValueError("found a section; allowed: single values, and lists of them")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"found {value}; allowed: finite numbers")
    return value


def are_names(value: Any) -> bool:
    """Whether a value is a tuple of different names."""
    is_plain = isinstance(value, tuple) and all(isinstance(name, str) and is_name(name) for name in value)
    return is_plain and len({*value}) == len(value)


IN_FILE = r"\.py(:|$)"
"""A regular expression that the kinds of cells in Python files match."""


def is_in_file(kind: object) -> bool:
    """Whether a kind names a Python file, and perhaps a class in it."""
    return isinstance(kind, str) and re.search(IN_FILE, kind) is not None


def same_file(kind: str, other: str) -> bool:
    """Whether two kinds name a class in a file alike; the file may have moved."""
    return is_in_file(other) and Path(kind).name == Path(other).name


_SET = ("states", "internal", "initial", "meanings")
"""Attributes of `Cell` that a class sets, without a type."""


def _check_names(cell: type[Cell]) -> None:
    """CellError if a class outside of charlm replaces what every cell has, except what a kind sets."""
    types = inspect.get_annotations(cell)
    for name in dict.fromkeys((*vars(cell), *types)):
        is_option = name in types and "ClassVar" not in str(types[name])
        may_set = ("hidden",) if is_option else (*_SET, "step", "model_post_init")
        is_new = not hasattr(Cell, name) and name not in Cell.model_fields
        if is_new or name in may_set or (name.startswith("_") and name != "__init__"):
            continue
        if name == "model_config" and cell.model_config == Cell.model_config:  # set by pydantic
            continue
        allowed = "another name"
        if name == "hidden":
            allowed = "hidden: int = 256"
        elif name in _SET:
            allowed = f"{name} = …, without a type"
        elif name in ("__init__", "model_config"):
            allowed = "options as attributes of the class, as in leak: float = 0.0"
        raise CellError(f"{cell.__name__}: found its own {name}, which every cell has; allowed: {allowed}")


def place_of(cell: type[Cell], attribute: str = "") -> str:
    """File and line of a class, or of an attribute in its body, for errors; its name alone if it has no source."""
    try:
        lines, first = inspect.getsourcelines(cell)
        file = Path(inspect.getfile(cell)).name
    except (OSError, TypeError):
        return cell.__name__
    numbers = [number for number, text in enumerate(lines) if re.match(rf"\s+{attribute}\s*[:=]", text)]
    line = first + numbers[0] if attribute and numbers else first
    return f"{file}, line {line}, {cell.__name__}"


def fault_of(cell: type[Cell], attribute: str, found: str, allowed: str) -> CellError:
    """The error of a class, or of an attribute in its body."""
    return CellError(f"{place_of(cell, attribute)}: found {found}; allowed: {allowed}")


# The program of a step


def trace(cell: Cell, square: bool) -> Program:
    """The program of a cell's step, see `Cell.program`; traced anew, because the step may read globals that change."""
    program = _traced(cell, square)
    if _traced(cell, square) != program:
        Parameters(cell, square).fail(
            "two calls of step differ; allowed: the same equations in every call; use no random numbers, and keep "
            "nothing from an earlier call"
        )
    for option in cell.initial:
        if (other := _with_another(cell, option, square)) and equations_only(other) != equations_only(program):
            Parameters(cell, square).fail(
                f"the option {option} is in `initial`, but the equations depend on it; allowed: options that only set "
                "initial values"
            )
    return program


def _with_another(cell: Cell, option: str, square: bool) -> Program | None:
    """The program with another value of an option; None if no value that is tried is allowed."""
    value = getattr(cell, option)
    choices = get_args(type(cell).model_fields[option].annotation)  # of a Literal
    number = value if isinstance(value, int | float) else 0.0
    for other in (not value, number + 1, number / 2, *choices):
        if other != value:
            with contextlib.suppress(ValidationError, CellError):
                return _traced(cell.with_options(cell.model_dump() | {option: other}), square)
    return None


@functools.lru_cache(maxsize=256)
def _trace_once(cell: Any, step: Any, square: bool) -> Program:
    """step: the cell's, which may have been replaced."""
    return trace(cell, square)


def _traced(cell: Cell, square: bool) -> Program:
    tracing = Parameters(cell, square)
    _check_signature(tracing)
    x = Value(tracing, tracing.builder.put(Node("input", size="I")))
    states = [Value(tracing, tracing.builder.put(Node("state", name=name))) for name in cell.states]
    try:
        results = cell.step(tracing, x, *states)
    except CellError:
        raise
    except (Exception, SystemExit) as error:
        raise CellError(f"{tracing.where(error)}: {_explained(error, tracing)}") from error
    tracing.returned = True
    if results is None or isinstance(results, list):
        found = "nothing" if results is None else "a list"
        tracing.fail(f"step returns {found}; allowed: a value for each state, as in return {', '.join(cell.states)}")
    results = results if isinstance(results, tuple) else (results,)
    if len(results) != len(cell.states):
        states = f"{len(cell.states)}: {', '.join(cell.states)}"
        tracing.fail(f"the number of values that step returns is {len(results)}; allowed: {states}")
    places = [tracing.value(result).place for result in results]
    matrices_first = sorted(tracing.declared.values(), key=lambda parameter: parameter.columns == "")
    program = Program(
        nodes=tuple(tracing.builder.nodes),
        states=cell.states,
        results=tuple(places),
        parameters=tuple(matrices_first),
        internal=cell.internal,
        gates=tuple(tracing.gates.items()),
        shown=tuple(tracing.shown.items()),
    )
    try:
        check(program, square)
    except ValueError as error:
        tracing.fail(str(error))
    return program


def _explained(error: BaseException, tracing: Parameters) -> str:
    """What to say of an exception that a step raised."""
    cell, text = tracing.cell, " ".join(str(error).split())
    if isinstance(error, ValidationError):
        return "step sets an attribute of the cell; allowed: reading attributes; carry values as states"
    if isinstance(error, AttributeError) and error.obj is tracing:
        functions = "p.product, p.transposed, p.vector, p.linear, p.layer_norm, p.note, p.show, p.square"
        return f"found p.{error.name}; allowed: {functions}; no value is a matrix: a state is a vector of H units"
    if isinstance(error, AttributeError) and error.obj is cell:
        known = sorted({*vars(cell), *dir(type(cell))} - {"kind", *dir(Cell)})
        return f"found self.{error.name}; allowed: {', '.join(known)}{nearest(error.name, known)}"
    is_complete = isinstance(error, ValueError) or (isinstance(error, AttributeError) and isinstance(error.obj, Value))
    return text if text and is_complete else f"{type(error).__name__}: {text}"


def _check_signature(tracing: Parameters) -> None:
    """CellError unless the cell has states, and its step takes them, each in its place."""
    cell = tracing.cell
    if not are_names(cell.states) or not cell.states:
        allowed = 'different names, as in ("h", "c")'
        raise fault_of(type(cell), "states", f"states = {cell.states!r:.80}", allowed)
    if not are_names(cell.internal) or not {*cell.internal} <= {*cell.states[1:]}:
        allowed = "a tuple of states, without the first"
        raise fault_of(type(cell), "internal", f"internal = {cell.internal!r:.80}", allowed)
    arguments = ("p", "x", *cell.states)
    signature = f"def step({', '.join(('self', *arguments))})"
    if type(cell).step.__module__ == __name__:  # that of `Cell`
        raise fault_of(type(cell), "", "no step", signature)
    try:
        written = inspect.signature(cell.step)
        written.bind(tracing, None, *cell.states)
    except TypeError as error:
        tracing.fail(f"{error}; allowed: {signature}, with one argument for each of the states")
    for place, name in enumerate(written.parameters):
        if name in arguments and arguments[place : place + 1] != (name,):
            tracing.fail(f"found {name} in the wrong place; allowed: {signature}")
