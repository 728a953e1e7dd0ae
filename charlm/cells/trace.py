"""Runs a cell's `step` on symbols, which gives its program."""

import inspect
import sys
import traceback
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from charlm.cells.check import MOST_NODES, check, check_shape
from charlm.cells.operations import OPERATIONS
from charlm.cells.program import Builder, Node, Parameter, Program, Size
from charlm.cells.step import Parameters
from charlm.cells.symbols import ALLOWED, Condition, Value
from charlm.errors import CellError


def trace(cell: Any, square: bool) -> Program:
    """The program of the step of a `Cell`. It is traced anew in each call, because it may read globals that change.

    square: whether a layer has as many inputs as hidden units, so that both kinds of vectors can be added.
    CellError, which names the source line, for a step that no program can express.
    """
    program = _traced(cell, square)
    if _traced(cell, square) != program:
        raise CellError(
            f"{_Tracing(cell, square).where()}: step computes something else when it is called again; allowed: the "
            "same in every call, so no random numbers, and nothing kept from an earlier call"
        )
    return program


def _traced(cell: Any, square: bool) -> Program:
    tracing = _Tracing(cell, square)
    tracing.check_signature()
    x = Value(tracing, tracing.builder.put(Node("input", size="I")))
    states = [Value(tracing, tracing.builder.put(Node("state", name=name))) for name in cell.states]
    try:
        results = cell.step(tracing, x, *states)
    except CellError:
        raise
    except (Exception, SystemExit) as error:
        raise CellError(f"{tracing.where(error)}: {_explained(error)}") from error
    tracing.returned = True
    if isinstance(results, list):
        tracing.fail("step returns a list; allowed: a tuple, or one value")
    results = results if isinstance(results, tuple) else (results,)
    if len(results) != len(cell.states):
        states = f"{len(cell.states)}: {', '.join(cell.states)}"
        tracing.fail(f"the number of values that step returns is {len(results)}; allowed: {states}")
    if not tracing.declared:
        tracing.fail("step uses no parameters; allowed: at least one")
    places = [tracing.value(result).place for result in results]
    matrices = [parameter for parameter in tracing.declared.values() if parameter.columns != ""]
    vectors = [parameter for parameter in tracing.declared.values() if parameter.columns == ""]
    program = Program(
        tuple(tracing.builder.nodes), cell.states, tuple(places), (*matrices, *vectors), cell.internal,
        tuple(tracing.gates.items()), tuple(tracing.shown.items()),
    )  # fmt: skip
    try:
        check(program, square)
    except ValueError as error:
        tracing.fail(str(error))
    return program


def _explained(error: BaseException) -> str:
    """An exception of a step, in words."""
    if isinstance(error, ValidationError):
        return (
            "an attribute of the cell is set, which keeps nothing; what a step needs of the past is one of its states"
        )
    return f"{type(error).__name__}: {' '.join(str(error).split())}; {ALLOWED}"


class _Tracing(Parameters):
    """Declares parameters, and records what a step computes."""

    def __init__(self, cell: Any, square: bool) -> None:
        self.cell, self.square = cell, square
        self.returned = False
        """Whether the step has returned: errors then name its first line."""
        self.builder = Builder()
        self.declared: dict[str, Parameter] = {}
        self.gates: dict[str, int] = {}
        self.shown: dict[str, int] = {}
        self.operations = 0
        """Counted as the step calls them, so that no option can make it run on and on."""

    # Called by a step

    def _matrix(self, parameter: Parameter, operand: Any, index: int | None, start: Any) -> Value:
        value = self.value(operand)
        if value.node.count != 1 or value.node.size == "":
            self.fail(f"{parameter.name}: the operand has {value.node.count} vectors; allowed: 1, and no constant")
        parameter = parameter._replace(columns=value.node.size)
        self._check_shape(parameter, index)
        starts = () if start is None else self._starts(parameter, index, start)
        self._declare(parameter._replace(starts=starts))
        return self._put(Node("product", (value.place,), parameter.gates, parameter.size, parameter.name, index or 0))

    def _vector(self, parameter: Parameter, index: int | None, start: Any) -> Value:
        self._check_shape(parameter, index)
        gates, bound = parameter.gates, parameter.bound
        starts = self._starts(parameter, index, start)
        self._declare(parameter._replace(starts=starts, bound=bound if bound is None else float(bound)))
        rows, first = gates * max(parameter.stack, 1), 0
        if index is not None:
            rows, first = gates, index * gates
        return self._put(Node("vector", (), rows, parameter.size, parameter.name, first))

    def note(self, **gates: Any) -> None:
        self.gates.update(self._named(gates))

    def show(self, **states: Any) -> None:
        self.shown.update(self._named(states))

    def check_signature(self) -> None:
        """CellError unless the cell has states, and its step takes them."""
        names, internal, cell = self.cell.states, self.cell.internal, type(self.cell).__name__
        if not isinstance(names, tuple) or len({*names}) != len(names) or not {*internal} < {*names}:
            raise CellError(
                f"{cell}: found states {names!r}, internal {internal!r}; allowed: a tuple of different names, as in "
                'states: ClassVar = ("h", "c"), and some of them, but not the first, as internal'
            )
        signature = ", ".join(("self", "p", "x", *names))
        if type(self.cell).step.__module__ == "charlm.cells.cell":  # that of `Cell`
            raise CellError(f"{cell}: found no step; allowed: def step({signature})")
        try:
            inspect.signature(self.cell.step).bind(self, None, *names)
        except TypeError as error:
            self.fail(f"{error}; allowed: def step({signature}), with one argument for each of the states")

    # Called by values and functions

    def value(self, value: Any) -> Value:
        """The value itself; a number becomes a constant."""
        if isinstance(value, Value):
            if value.tracing is not self:
                self.fail("found a value of another step; what a step needs of the past is one of its states")
            if isinstance(value, Condition):
                self.fail("a comparison where a vector belongs; allowed: where(comparison, a, b), or v * comparison")
            return value
        if isinstance(value, Real) and not isinstance(value, bool):
            return Value(self, self.builder.constant(float(value)))
        return self.fail(f"found a {type(value).__name__} where a vector or a number belongs; {ALLOWED}")

    def apply(self, op: str, *operands: Any) -> Value:
        """An operation unit by unit."""
        arity = OPERATIONS[op].arity
        if len(operands) != arity:
            self.fail(f"{op} of {len(operands)} values; allowed: {arity}")
        if op == "where":
            condition, *branches = operands
            if not isinstance(condition, Condition):
                self.fail("where needs a comparison as its condition; allowed: for example where(a > b, a, b)")
            own = self.value(Value(condition.tracing, condition.place))
            values = [own, *map(self.value, branches[:: -1 if condition.inverted else 1])]
        elif op in ("add", "mul") and any(type(operand) is Value for operand in operands):
            # With a vector of torch, a comparison counts as 1 and 0.
            numbers = (each.number if isinstance(each, Condition) else each for each in operands)
            values = [self.value(operand) for operand in numbers]
        else:
            values = [self.value(operand) for operand in operands]
        size: Size | None = ""
        for value in values:
            size = None if size is None else self.joined(size, value.node.size)
        counts = {value.node.count for value in values} - {1}
        if size is None or len(counts) > 1:
            sizes = " and ".join(f"{value.node.count} × {value.node.size or 'constant'}" for value in values)
            self.fail(
                f"{op} of vectors of different sizes: {sizes}; allowed: the same; H is model.cell.hidden, and I in the "
                "first layer model.embedding"
            )
        self._count()
        place = self.builder.apply(op, *(value.place for value in values), size=size)
        return Condition(self, place) if op == "greater" else Value(self, place)

    def over_units(self, op: str, value: Any, epsilon: float = 0.0, index: int = 0) -> Value:
        """normalize or stop."""
        own = self.value(value)
        node = Node(op, (own.place,), own.node.count, own.node.size, index=index, number=float(epsilon))
        return self._put(node)

    def joined(self, one: Size, other: Size) -> Size | None:
        """The size of a result of two sizes; None if they do not fit."""
        if one == other or other == "":
            return one
        if one == "":
            return other
        return "H" if self.square and {one, other} == {"H", "I"} else None

    def fail(self, fault: str) -> NoReturn:
        raise CellError(f"{self.where()}: {fault}")

    def where(self, error: BaseException | None = None) -> str:
        """File and line of the step that is being traced, or in which an error was raised."""
        frames = traceback.walk_stack(sys._getframe(1)) if error is None else traceback.walk_tb(error.__traceback__)
        step = inspect.unwrap(type(self.cell).step).__code__
        lines = [line for frame, line in frames if frame.f_code.co_filename == step.co_filename]
        # The innermost line of the cell's own file: the first of a stack, the last of a traceback.
        line = lines[0 if error is None else -1] if lines and not self.returned else step.co_firstlineno
        return f"{Path(step.co_filename).name}, line {line}, {type(self.cell).__name__}.step"

    def _named(self, values: dict[str, Any]) -> dict[str, int]:
        """The nodes of the values that people look at."""
        traced = {name: self.value(value) for name, value in values.items()}
        for name, value in traced.items():
            if value.node.count > 1:
                self.fail(f"{name} is {value.node.count} vectors; allowed: one vector for each name")
        return {name: value.place for name, value in traced.items()}

    def _put(self, node: Node) -> Value:
        """A node of the step; it counts as an operation."""
        self._count()
        return Value(self, self.builder.put(node))

    def _count(self) -> None:
        self.operations += 1
        if self.operations > MOST_NODES:
            self.fail(
                f"found more than {MOST_NODES:,} operations in a step; allowed: up to these; choose smaller options, "
                "or a shorter step"
            )

    def _check_shape(self, parameter: Parameter, index: int | None) -> None:
        """CellError unless the sizes are allowed, before anything of these sizes is made."""
        try:
            check_shape(parameter)
        except ValueError as error:
            self.fail(str(error))
        of = parameter.stack
        if index is not None and not (type(index) is int and 0 <= index < of):
            self.fail(f"{parameter.name}: index {index!r:.40}; allowed: 0 to {of - 1}")

    def _starts(self, parameter: Parameter, index: int | None, start: Any) -> tuple[float | str | None, ...]:
        """The initial value of each row of a vector, or of each matrix; `start` is one, or one for each of the call."""
        stack = max(parameter.stack, 1)
        count = parameter.gates if index is not None else parameter.gates * stack
        starts = tuple(start) if isinstance(start, tuple | list) else (start,) * count
        if len(starts) != count:
            self.fail(
                f"{parameter.name}: start has {len(starts)} values; allowed: one, or one for each of {count} gates"
            )
        if index is not None:
            starts *= stack
        return tuple(one if one is None or isinstance(one, str) else float(one) for one in starts)

    def _declare(self, parameter: Parameter) -> None:
        known = self.declared.setdefault(parameter.name, parameter)
        if known != parameter:
            fields = zip(Parameter._fields, known, parameter, strict=True)
            both = "; ".join(f"{field} {one!r} and {other!r}" for field, one, other in fields if one != other)
            self.fail(f"the parameter {parameter.name} is declared twice, with {both}; allowed: two names")
