"""Runs a cell's `step` on symbols, which gives its program."""

import functools
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from charlm.cells.cell import Cell, Parameters
from charlm.cells.check import MOST_NODES, check, check_shape
from charlm.cells.operations import BINARY, UNARY
from charlm.cells.program import Builder, Node, Parameter, Program, Size
from charlm.cells.torch_functions import FUNCTIONS, INSTEAD, NO_METHODS
from charlm.errors import CellError

_ALLOWED = (
    "allowed: + − × ÷, powers, < and >, exp, log, tanh, sigmoid, softplus, log_sigmoid, relu, sqrt, abs, clamp, "
    "maximum, minimum, where, normalize, rms_normalize, stop_gradient, and products and parameters by p"
)
_OPERANDS = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2), "where": 3}


def trace(cell: Cell, square: bool) -> Program:
    """The program of a cell's step. It is traced anew in each call, because it may read globals that change.

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


def _traced(cell: Cell, square: bool) -> Program:
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
    return f"{type(error).__name__}: {' '.join(str(error).split())}; {_ALLOWED}"


class _Tracing(Parameters):
    """Declares parameters, and records what a step computes."""

    def __init__(self, cell: Cell, square: bool) -> None:
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

    def product(
        self,
        name: str,
        operand: Any,
        gates: int = 1,
        *,
        index: int | None = None,
        of: int = 0,
        size: Size = "H",
        start: Any = None,
    ) -> "Value":
        value = self.value(operand)
        if value.node.count != 1 or value.node.size == "":
            self.fail(f"{name}: the operand has {value.node.count} vectors; allowed: 1, and no constant")
        parameter = Parameter(name, gates, size, value.node.size, of)
        self._check_shape(parameter, index)
        starts = () if start is None else self._starts(parameter, index, start)
        self._declare(parameter._replace(starts=starts))
        return self._put(Node("product", (value.place,), gates, size, name, index or 0))

    def vector(
        self,
        name: str,
        gates: int = 1,
        *,
        start: Any = None,
        bound: float | None = None,
        index: int | None = None,
        of: int = 0,
        size: Size = "H",
    ) -> "Value":
        parameter = Parameter(name, gates, size, "", of)
        self._check_shape(parameter, index)
        rows = gates if index is not None else gates * max(of, 1)
        starts = self._starts(parameter, index, start)
        self._declare(parameter._replace(starts=starts, bound=bound if bound is None else float(bound)))
        first = 0 if index is None else index * gates
        return self._put(Node("vector", (), rows, size, name, first))

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
        if type(self.cell).step is Cell.step:
            raise CellError(f"{cell}: found no step; allowed: def step({signature})")
        try:
            inspect.signature(self.cell.step).bind(self, None, *names)
        except TypeError as error:
            self.fail(f"{error}; allowed: def step({signature}), with one argument for each of the states")

    # Called by values and functions

    def value(self, value: Any) -> "Value":
        """The value itself; a number becomes a constant."""
        if isinstance(value, Value):
            if value.tracing is not self:
                self.fail("found a value of another step; what a step needs of the past is one of its states")
            if isinstance(value, Condition):
                self.fail("a comparison where a vector belongs; allowed: where(comparison, a, b), or v * comparison")
            return value
        if isinstance(value, Real) and not isinstance(value, bool):
            return Value(self, self.builder.constant(float(value)))
        return self.fail(f"found a {type(value).__name__} where a vector or a number belongs; {_ALLOWED}")

    def apply(self, op: str, *operands: Any) -> "Value":
        """An operation unit by unit."""
        if len(operands) != _OPERANDS[op]:
            self.fail(f"{op} of {len(operands)} values; allowed: {_OPERANDS[op]}")
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

    def over_units(self, op: str, value: Any, epsilon: float = 0.0, index: int = 0) -> "Value":
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

    def _put(self, node: Node) -> "Value":
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


def _operator(op: str, *, reflected: bool = False) -> "Callable[[Value, Any], Value]":
    """The method of an operator; reflected: of the value on its right."""

    def method(self: "Value", other: Any) -> "Value":
        return self.tracing.apply(op, *((other, self) if reflected else (self, other)))

    return method


def _logical(sign: str, op: str) -> "Callable[[Value, Any], Value]":
    """The method of an operator between comparisons; op: of their numbers, above 0 where the result holds."""

    def method(self: "Value", other: Any) -> "Value":
        if not isinstance(self, Condition) or not isinstance(other, Condition):
            self.tracing.fail(f"{sign} of what is no comparison; allowed: as in where((a > 0) {sign} (b > 0), a, b)")
        return self.tracing.apply(op, self.number, other.number) > 0

    return method


class Value:
    """A symbolic vector, or several side by side: how it is computed, without numbers."""

    def __init__(self, tracing: _Tracing, place: int) -> None:
        self.tracing, self.place = tracing, place

    @property
    def node(self) -> Node:
        return self.tracing.builder.nodes[self.place]

    def __iter__(self) -> "Iterator[Value]":
        """The vectors that are side by side."""
        return iter([Value(self.tracing, self.tracing.builder.part(self.place, k)) for k in range(len(self))])

    def __len__(self) -> int:
        """How many vectors are side by side; with one, an error that says so: of a tensor it is the batch size."""
        if self.node.count == 1:
            self.tracing.fail(
                "found one vector where several are expected; allowed: products and vectors with gates; a step sees "
                "one time step, and charlm makes the loop over time"
            )
        return self.node.count

    def __getitem__(self, index: int) -> "Value":
        if type(index) is not int or not -len(self) <= index < len(self):
            self.tracing.fail(f"found {index!r:.40} as an index; allowed: 0 to {len(self) - 1}")
        return list(self)[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._change_in_place(value)

    def _change_in_place(self, other: Any) -> NoReturn:
        """What torch would do to a tensor under all its names, and to vectors that share its memory."""
        self.tracing.fail("a vector is changed in place, as by a += b; allowed: a new one, as by a = a + b")

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ipow__ = __iand__ = __ior__ = _change_in_place

    def __bool__(self) -> bool:
        self.tracing.fail("a branch on a value, which a trace does not know; use where(condition, a, b)")

    def __float__(self) -> float:
        self.tracing.fail(f"a number is needed where a vector was found; {_ALLOWED}")

    __int__ = __index__ = __float__
    __array_ufunc__ = None  # numpy then refuses its functions, and leaves operators to this class

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        self.tracing.fail(f"an array of numpy of vectors, which a trace does not know; {_ALLOWED}")

    def __matmul__(self, other: Any) -> "Value":
        self.tracing.fail('a product with @; allowed: p.product("weight", x), which declares the matrix')

    __rmatmul__ = __matmul__

    def __eq__(self, other: object) -> bool:
        self.tracing.fail(f"a comparison with == or !=; {_ALLOWED}")

    __hash__ = None  # type: ignore[assignment]

    __and__ = _logical("&", "mul")
    __or__ = _logical("|", "add")

    __gt__ = _operator("greater")
    __lt__ = _operator("greater", reflected=True)

    def __ge__(self, other: Any) -> "Value":
        return Condition(self.tracing, self.tracing.apply("greater", other, self).place, inverted=True)

    def __le__(self, other: Any) -> "Value":
        return Condition(self.tracing, self.tracing.apply("greater", self, other).place, inverted=True)

    __add__ = _operator("add")
    __radd__ = _operator("add", reflected=True)
    __sub__ = _operator("sub")
    __rsub__ = _operator("sub", reflected=True)
    __mul__ = _operator("mul")
    __rmul__ = _operator("mul", reflected=True)
    __truediv__ = _operator("div")
    __rtruediv__ = _operator("div", reflected=True)

    def __pow__(self, exponent: Any) -> "Value":
        return FUNCTIONS["pow"](self, exponent)

    def __neg__(self) -> "Value":
        return self.tracing.apply("sub", 0.0, self)

    def __abs__(self) -> "Value":
        return FUNCTIONS["abs"](self)

    def where(self, condition: Any, other: Any) -> "Value":
        """torch's method: the vector itself where the condition holds."""
        return self.tracing.apply("where", condition, self, other)

    def __getattr__(self, name: str) -> Any:
        """Methods of tensors that are operations, as `x.tanh()`."""
        if name in FUNCTIONS and name not in NO_METHODS:
            return functools.partial(FUNCTIONS[name], self)
        raise AttributeError(f"a vector of a step has no {name}" + (f"; {_instead(name)}" if _instead(name) else ""))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> "Value":
        """Functions of torch that are operations, as torch.tanh(x)."""
        tracing = next(_values([*args, *(kwargs or {}).values()])).tracing
        name, options = getattr(function, "__name__", str(function)), dict(kwargs or {})
        if name not in FUNCTIONS:
            tracing.fail(f"torch's {name} is no operation of a step; " + (_instead(name) or _ALLOWED))
        if options.pop("inplace", False):
            tracing.fail(f"torch's {name} with inplace=True, which changes a vector; allowed: inplace=False")
        if name != "where" and not (args and isinstance(args[0], Value)):
            tracing.fail(f"torch's {name} of something else than a vector first; allowed: a vector, as {name}(v)")
        return FUNCTIONS[name](*args, **options)


class Condition(Value):
    """A comparison: what `where` takes."""

    def __init__(self, tracing: _Tracing, place: int, inverted: bool = False) -> None:
        super().__init__(tracing, place)
        self.inverted = inverted
        """Whether it holds where the node does not."""

    def __iter__(self) -> Iterator[Value]:
        return (Condition(self.tracing, value.place, self.inverted) for value in super().__iter__())

    def __invert__(self) -> "Condition":
        return Condition(self.tracing, self.place, inverted=not self.inverted)

    @property
    def number(self) -> Value:
        """1 where it holds, else 0."""
        return self.tracing.apply("where", self, 1.0, 0.0)


def _values(arguments: Iterable[Any]) -> Iterator[Value]:
    """The values in arguments and in lists of them."""
    for argument in arguments:
        if isinstance(argument, Value):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _values(argument)


def _instead(name: str) -> str:
    instead = (NO_METHODS | INSTEAD).get(name)
    return f"write {instead} instead" if instead else ""
