"""What a step calls: parameters and functions, on symbols and on tensors."""

import functools
import inspect
import sys
import traceback
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn

from charlm.cells.check import LARGEST, MOST_NODES, check_shape, joined
from charlm.cells.operations import OPERATIONS
from charlm.cells.program import EPSILON, Builder, Node, Parameter, Size, Start
from charlm.cells.symbols import ALLOWED, Condition, Value
from charlm.errors import CellError


class Parameters:
    """A layer's parameters, as a step uses them. The first use of a name declares the parameter.

    A trace of the step: its values record in `builder` what it computes.
    """

    def __init__(self, cell: Any, square: bool) -> None:
        self.cell = cell
        self.square = square
        """Whether the layer has as many inputs as hidden units, so that x and the states can be added."""
        self.returned = False
        """Whether the step has returned: errors then name its last line."""
        self.builder = Builder()
        self.declared: dict[str, Parameter] = {}
        self.rows: set[tuple[str, int]] = set()
        """The rows of vectors that the step has, by name and number."""
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
        fixed: bool = False,
    ) -> Any:
        """W v: a matrix times a vector; the same name again: the same matrix. Several gates: vectors side by side.

        index, of: this is matrix `index` of a stack of `of`. size: the result's units: "H", "I" for as many as the
        input has, or a number. start: the initial matrix, or one for each gate: "identity", "orthogonal", a number for
        all entries, or an array [size, units of v]; None: drawn at random. fixed: training does not change the matrix.
        """
        value = self.value(operand)
        if value.node.count != 1 or value.node.size == "":
            self.fail(f"{name}: the operand has {value.node.count} vectors; allowed: 1, and no constant")
        self._declare(Parameter(name, gates, size, value.node.size, of, fixed=fixed), index, start)
        return self._put(Node("product", (value.place,), gates, size, name, index or 0))

    def transposed(self, name: str, operand: Any, index: int = 0) -> Any:
        """Wᵀ v, where W is the matrix of one gate of an earlier `product` of this name and index."""
        value, known = self.value(operand), self.declared.get(name)
        if known and not (type(index) is int and 0 <= index < max(known.stack, 1)):
            self.fail(f"{name}: index {index!r:.40}; allowed: 0 to {max(known.stack, 1) - 1}")
        if known is None or known.columns == "" or known.gates != 1:
            self.fail(f"{name}: found no matrix of this name with one gate; allowed: that of an earlier p.product")
        if value.node.count != 1 or value.node.size != known.size:
            found = f"{value.node.count} × {value.node.size or 'constant'}"
            self.fail(f"{name}: the operand of the transposed matrix is {found}; allowed: 1 × {known.size}")
        return self._put(Node("product", (value.place,), 1, known.columns, name, index, transposed=True))

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
        fixed: bool = False,
    ) -> Any:
        """A parameter with one number per unit; several gates: one such vector each, side by side.

        A step calls this once for each row. start: the initial value, or one for each gate: a number, or an array with
        a number for each unit; None: drawn at random, from U(±bound) or like a bias. of: length of the parameter's
        first dimension; index: the row to use, else all. fixed: training does not change the vector.
        """
        bound = None if bound is None else float(bound)
        self._declare(Parameter(name, gates, size, stack=of, bound=bound, fixed=fixed), index, start)
        rows, first = (gates * max(of, 1), 0) if index is None else (gates, index * gates)
        own_rows = {(name, row) for row in range(first, first + rows)}
        if not self.rows.isdisjoint(own_rows):
            self.fail(f"the vector {name} is asked for twice; allowed: once; keep it in a variable, or rename one")
        self.rows |= own_rows
        return self._put(Node("vector", (), rows, size, name, first))

    def linear(self, x: Any, h: Any, gates: int = 1, start: Any = None) -> Any:
        """W x + b + R h + b', with torch.nn's names of the parameters. start: initial value of b + b', see `vector`."""
        starts = start if isinstance(start, tuple | list) else (start,) * gates
        other = [None if one is None else 0.0 for one in starts]
        biases = self.vector("bias_ih", gates, start=start) + self.vector("bias_hh", gates, start=other)
        return self.product("weight_ih", x, gates) + biases + self.product("weight_hh", h, gates)

    def layer_norm(self, value: Any, name: str, of: int = 0, start: Any = 0.0) -> Any:
        """Layer normalization (Ba et al. 2016) of each vector over its units; of: how many, 0 for one alone."""
        gain = self.vector(f"weight_ln_{name}", of=of, start=1.0)
        return normalize(value) * gain + self.vector(f"bias_ln_{name}", of=of, start=start)

    def note(self, **gates: Any) -> None:
        """Name gates and candidates, for people who watch a model at work."""
        self.gates.update(self._named(gates))

    def show(self, **states: Any) -> None:
        """Name values for people to watch besides a state, or in its place."""
        self.shown.update(self._named(states))

    # Called by values and functions

    def value(self, value: Any) -> Value:
        """The value itself; a number becomes a constant."""
        if isinstance(value, Value):
            if value.tracing is not self:
                self.fail("found a value of another step; allowed: values of this step; carry it as a state")
            if isinstance(value, Condition):
                self.fail("a comparison where a vector belongs; allowed: where(comparison, a, b), or v * comparison")
            return value
        if isinstance(value, Real) and not isinstance(value, bool):
            number = float(value)
            if not abs(number) <= LARGEST:
                self.fail(f"found the number {number}; allowed: finite numbers")
            return Value(self, self.builder.constant(number))
        allowed = ALLOWED
        if getattr(value, "ndim", 0) > 0:
            allowed = "allowed: a vector with these values, p.vector(name, start=array, fixed=True)"
        return self.fail(f"found a {type(value).__name__} where a vector or a number belongs; {allowed}")

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
        size = joined([value.node.size for value in values], self.square)
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

    def fail(self, fault: str) -> NoReturn:
        """CellError with the file and the line of the step."""
        raise CellError(f"{self.where()}: {fault}")

    def where(self, error: BaseException | None = None) -> str:
        """File and line of the step that is being traced, or in which an error was raised."""
        frames = [*(traceback.walk_tb(error.__traceback__) if error else traceback.walk_stack(sys._getframe(1)))]
        step = inspect.unwrap(type(self.cell).step).__code__
        lines = [line for frame, line in frames if frame.f_code.co_filename == step.co_filename]
        if self.returned:
            line = max(number for *_, number in step.co_lines() if number)
        elif any(frame.f_code is step for frame, _ in frames):
            # The innermost line: the first of a stack, the last of a traceback.
            line = lines[-1 if error else 0]
        else:
            line = step.co_firstlineno
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

    def _declare(self, parameter: Parameter, index: int | None, start: Any) -> None:
        """start: the initial value of each row of a vector, or of each matrix: one, or one for each gate."""
        try:
            check_shape(parameter)  # before anything of these sizes is made
        except ValueError as error:
            self.fail(str(error))
        name, of = parameter.name, parameter.stack
        if not isinstance(parameter.fixed, bool):
            self.fail(f"{name}: fixed={parameter.fixed!r:.40}; allowed: True or False")
        if index is not None and not (type(index) is int and 0 <= index < of):
            self.fail(f"{name}: index {index!r:.40}; allowed: 0 to {of - 1}")
        if start is not None or parameter.columns == "":
            rows = parameter.gates * max(of, 1)
            count = rows if index is None else parameter.gates
            parameter = parameter._replace(starts=self._starts(parameter, start, count) * (rows // count))
        known = self.declared.setdefault(name, parameter)
        if known != parameter:
            fields = zip(Parameter._fields, known, parameter, strict=True)
            both = "; ".join(f"{field} {one!r:.40} and {other!r:.40}" for field, one, other in fields if one != other)
            self.fail(f"the parameter {name} is declared twice, with {both}; allowed: two names")

    def _starts(self, parameter: Parameter, start: Any, count: int) -> tuple[Start, ...]:
        """The initial values of `count` rows or matrices, from one for all or one for each."""
        shape = parameter._replace(gates=1, stack=0).shape(self.cell.hidden, 0)
        several = isinstance(start, tuple | list) or getattr(start, "ndim", 0) > len(shape)
        # A list of numbers for the units of a single row is one array.
        if not several or (count == 1 != len(start)):
            return (self._start(parameter.name, start, shape),) * count
        if len(start) != count:
            self.fail(
                f"{parameter.name}: start has {len(start)} values; allowed: one, or one for each of {count} gates"
            )
        return tuple(self._start(parameter.name, one, shape) for one in start)

    def _start(self, name: str, start: Any, shape: tuple[int, ...]) -> Start:
        """An initial value as the program holds it. shape: of arrays; 0 for units that are not known yet."""
        if start is None or isinstance(start, str):
            return start
        if isinstance(start, Real) and not isinstance(start, bool):
            return float(start)
        import numpy as np  # not above: it takes a tenth of a second

        try:
            array = np.asarray(start)
        except ValueError:  # lists of different lengths
            array = np.empty(0, object)
        if array.dtype.kind not in "fiu":
            self.fail(f"{name}: start is a {type(start).__name__} of {array.dtype}; allowed: real numbers")
        array = array.astype(np.float64)
        if array.ndim == 0:
            return float(array)
        if not (np.abs(array) <= LARGEST).all():
            self.fail(f"{name}: start has a number that is not finite; allowed: finite numbers")
        if array.shape != shape:
            allowed = f"a number, or an array of shape {list(shape)}" if all(shape) else "a number"
            self.fail(f"{name}: start is an array of shape {[*array.shape]}; allowed: {allowed}")
        return array.tobytes()


# Functions


def exp(v: Any) -> Any:
    """eᵛ, unit by unit."""
    return v.exp()


def log(v: Any) -> Any:
    """The natural logarithm, unit by unit."""
    return v.log()


def sqrt(v: Any) -> Any:
    """√v, unit by unit."""
    return v.sqrt()


def tanh(v: Any) -> Any:
    """tanh v, unit by unit."""
    return v.tanh()


def sigmoid(v: Any) -> Any:
    """σ(v) = 1 / (1 + e⁻ᵛ), unit by unit."""
    return v.sigmoid()


def relu(v: Any) -> Any:
    """max(v, 0), unit by unit."""
    return v.relu()


def log_sigmoid(v: Any) -> Any:
    """log σ(v)"""
    return -v.tracing.apply("softplus", -v) if hasattr(v, "tracing") else _of_tensors().logsigmoid(v)


def softplus(v: Any) -> Any:
    """log(1 + eᵛ)"""
    return -log_sigmoid(-v)


def maximum(a: Any, b: Any) -> Any:
    """The greater of two vectors, or of a vector and a number."""
    return _extreme("maximum", a, b)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two vectors, or of a vector and a number."""
    return _extreme("minimum", a, b)


def clamp(v: Any, min: Any = None, max: Any = None) -> Any:
    """A vector v, but at least min and at most max, which are numbers or vectors."""
    return v.clamp(min, max)


def where(condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b; as in where(x > 0, x, 0.1 * x)."""
    if hasattr(condition, "tracing"):
        return condition.tracing.apply("where", condition, a, b)
    import torch

    return torch.where(condition, a, b)


def stop_gradient(v: Any) -> Any:
    """v, through which no gradient flows."""
    return v.detach()


def normalize(v: Any, epsilon: float = EPSILON) -> Any:
    """(v − mean v) / √(var v + ε) over the units of each vector."""
    if hasattr(v, "tracing"):
        return v.tracing.over_units("normalize", v, epsilon)
    return _of_tensors().layer_norm(v, v.shape[-1:], eps=epsilon)


def rms_normalize(v: Any, epsilon: float = EPSILON) -> Any:
    """v / √(mean v² + ε) over the units of each vector."""
    if hasattr(v, "tracing"):
        return v.tracing.over_units("normalize", v, epsilon, 1)
    return _of_tensors().rms_norm(v, v.shape[-1:], eps=epsilon)


def _extreme(name: str, a: Any, b: Any) -> Any:
    if isinstance(a, int | float):
        a, b = b, a
    if isinstance(b, int | float):
        return a.clamp(min=b) if name == "maximum" else a.clamp(max=b)
    return getattr(a, name)(b)


@functools.cache
def _of_tensors() -> Any:
    """torch.nn.functional, imported only where a step runs on tensors or is traced: reading a config must be fast."""
    import torch.nn.functional

    return torch.nn.functional
