"""What a person writes: a subclass of `Cell` with its options and one `step`, which calls what is in step.py."""

import contextlib
import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from charlm.cells.check import check
from charlm.cells.program import MOST_SIZE, Node, Program
from charlm.cells.split import equations_only
from charlm.cells.step import Parameters
from charlm.cells.symbols import ALLOWED, Value
from charlm.errors import CellError
from charlm.system.section import Count, Section


class Cell(Section):
    """A recurrent cell: its options, and the equations of one step.

    Options are annotated attributes with a default; the text below one is its help. `step` is the only place where
    the equations stand: it runs on tensors, and charlm traces it for each model to derive everything else.
    """

    states: ClassVar[tuple[str, ...]] = ("h",)
    """Names of the state's vectors, each of H units; the first is the output."""
    internal: ClassVar[tuple[str, ...]] = ()
    """States without a meaning of their own: zoneout skips them, and pages do not show them."""
    initial: ClassVar[tuple[str, ...]] = ()
    """Options that only set initial values, so a run that starts from trained weights may change them."""
    meanings: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Names on pages for states, candidates and gates; for a gate also its effect at 0 and at 1. Not in checkpoints."""

    reduced: "ClassVar[Callable[[Cell], tuple[Any, ...]] | None]" = None
    """Reduces a cell of a file to its programs, for pickle. stored.py sets it, which file.py imports."""

    model_config = ConfigDict(validate_default=True)

    kind: str = ""
    """The name of a built-in kind, or FILE.py:CLASS."""
    hidden: Annotated[Count, Field(le=MOST_SIZE)] = 256
    """Hidden units of each layer, H."""

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
        reduced = Cell.reduced
        return reduced(self) if reduced and is_in_file(self.kind) else super().__reduce_ex__(protocol)

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


def is_in_file(kind: object) -> bool:
    """Whether a kind names a Python file, and perhaps a class in it."""
    return isinstance(kind, str) and re.search(r"\.py(:|$)", kind) is not None


def same_file(kind: str, other: str) -> bool:
    """Whether two kinds name a class in a file alike; the file may have moved."""
    return is_in_file(other) and Path(kind).name == Path(other).name


# The program of a step


def trace(cell: Cell, square: bool) -> Program:
    """The program of a cell's step, see `Cell.program`; traced anew, because the step may read globals that change."""
    program = _traced(cell, square)
    if _traced(cell, square) != program:
        raise CellError(
            f"{Parameters(cell, square).where()}: two calls of step differ; allowed: the same equations in every call; "
            "use no random numbers, and keep nothing from an earlier call"
        )
    for option in cell.initial:
        if (other := _with_another(cell, option, square)) and equations_only(other) != equations_only(program):
            raise CellError(
                f"{Parameters(cell, square).where()}: the option {option} is in `initial`, but the equations depend on "
                "it; allowed: options that only set initial values"
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
    leaves = [tracing.builder.put(Node("state", name=name)) for name in cell.states]
    states = [Value(tracing, place) for place in leaves]
    try:
        results = cell.step(tracing, x, *states)
    except CellError:
        raise
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}; {ALLOWED}"
        if isinstance(error, ValidationError):
            text = "step sets an attribute of the cell; allowed: reading attributes; carry values as states"
        raise CellError(f"{tracing.where(error)}: {text}") from error
    tracing.returned = True
    if isinstance(results, list):
        tracing.fail("step returns a list; allowed: a tuple, or one value")
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
        check(program, square, cell.hidden)
    except ValueError as error:
        tracing.fail(str(error))
    return program


def _check_signature(tracing: Parameters) -> None:
    """CellError unless the cell has states, and its step takes them."""
    cell = tracing.cell
    names, internal, name = cell.states, cell.internal, type(cell).__name__
    if not isinstance(names, tuple) or len({*names}) != len(names) or not {*internal} < {*names}:
        raise CellError(
            f"{name}: found states {names!r}, internal {internal!r}; allowed: a tuple of different names, such as "
            'states: ClassVar = ("h", "c"), and as internal any but the first of them'
        )
    signature = ", ".join(("self", "p", "x", *names))
    if type(cell).step.__module__ == __name__:  # that of `Cell`
        raise CellError(f"{name}: found no step; allowed: def step({signature})")
    try:
        inspect.signature(cell.step).bind(tracing, None, *names)
    except TypeError as error:
        tracing.fail(f"{error}; allowed: def step({signature}), with one argument for each of the states")
