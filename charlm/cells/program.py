"""A cell's step as data: traced from `step`, and the source of loops, derivatives, kernels and exports.

A program is a list of nodes in the order of computation; a node's place is its index in the list. Each node is a value:
`count` vectors over units, side by side (stacked gates). Shapes: H hidden units, I inputs.
"""

import hashlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

Size = str | int
"""Units of a vector: "H", "I", or a number; "" for a constant, which fits every size."""
MOST_SIZE = 2**20
"""Most units of a vector."""


def units(size: Size, hidden: int, inputs: int) -> int:
    """The number of units that a size stands for."""
    return {"H": hidden, "I": inputs}[size] if isinstance(size, str) else size


EPSILON = 1e-5
"""What a normalization adds to the mean square, unless its step says otherwise."""
MATRIX_STARTS = ("identity", "orthogonal")
"""Initial values of a matrix besides numbers."""
Start = float | str | bytes | None
"""The initial value of a matrix, or of a row of a vector: a number for all entries, a name in MATRIX_STARTS, or the
bytes of an array of float64; None: drawn at random. A checkpoint, whose weights hold the values, has a digest in place
of an array."""
ARRAY = "array "
"""Before the digest of an array."""
START = "start"
"""The parameter that learned initial states have, see charlm/cells/state_options.py; no step may declare it."""


def without_arrays(starts: "tuple[Start, ...]") -> tuple[float | str | None, ...]:
    """Initial values, with a digest for each array."""
    return tuple(f"{ARRAY}{hashlib.sha256(one).hexdigest()}" if isinstance(one, bytes) else one for one in starts)


@dataclass(frozen=True)
class Node:
    """One value.

        input       x_t, of size I
        state       the state `name` before the step
        given       the tensor `name` of a call, see charlm/cells/state_options.py; size "": a number for each stream
        constant    `number`
        vector      `count` rows of the parameter `name` from row `index` on; a row has one number per unit
        product     W v for v = args[0]: W is matrix `index` of the parameter `name`, with `count` rows per unit;
                    `transposed`: Wᵀ v
        part        vector `index` of args[0]
        normalize   (v − mean v) / √(var v + number) over the units of each vector; index 1: v / √(mean v² + number)
        stop        args[0], through which no gradient flows
        greater     whether args[0] > args[1]
        where       args[1] where args[0] holds, else args[2]

    All others are functions of their arguments, unit by unit.
    """

    op: str
    args: tuple[int, ...] = ()
    count: int = 1
    size: Size = "H"
    name: str = ""
    index: int = 0
    number: float = 0.0
    transposed: bool = False

    @property
    def is_rms(self) -> bool:
        """Of a `normalize`: whether the mean stays in."""
        return self.index == 1


class Parameter(NamedTuple):
    """A parameter of a layer: a stack of matrices [gates · size, columns], or of vectors [gates · size]."""

    name: str
    gates: int = 1
    size: Size = "H"
    columns: Size = ""
    """Size of the vectors that a matrix multiplies; "" for a vector."""
    stack: int = 0
    """Length of the first dimension; 0: no such dimension."""
    starts: tuple[Start, ...] = ()
    """The initial value of each row or matrix. (): all matrices are drawn at random."""
    bound: float | None = None
    """Random initial values are drawn from U(±bound); None: from the layer's own range."""
    fixed: bool = False
    """Whether it keeps its initial value: training does not change it."""

    @property
    def shape_text(self) -> str:
        """The shape for people, such as [4·H, I]."""
        rows = f"{self.gates}·{self.size}" if self.gates > 1 else f"{self.size}"
        sizes = [self.stack or "", rows, self.columns]
        return f"[{', '.join(str(size) for size in sizes if size != '')}]"

    def shape(self, hidden: int, inputs: int) -> tuple[int, ...]:
        """The shape of the tensor."""
        stack = [self.stack] if self.stack else []
        columns = [units(self.columns, hidden, inputs)] if self.columns != "" else []
        return (*stack, self.gates * units(self.size, hidden, inputs), *columns)


class Program(NamedTuple):
    """One step of a cell."""

    nodes: tuple[Node, ...]
    states: tuple[str, ...]
    """Names of the state's vectors; the first is the output."""
    results: tuple[int, ...]
    """The node of each state after the step."""
    parameters: tuple[Parameter, ...]
    """Matrices first, then vectors."""
    internal: tuple[str, ...] = ()
    """States that mean something only together: they start from zeros, and zoneout leaves them alone."""
    gates: tuple[tuple[str, int], ...] = ()
    """Names and nodes that people look at: gates, and candidates."""
    shown: tuple[tuple[str, int], ...] = ()
    """Names and nodes that people look at like states."""

    @property
    def given(self) -> tuple[str, ...]:
        """Names of the tensors that a call gives besides the input."""
        return tuple(node.name for node in self.nodes if node.op == "given")

    def rebuilt(self, nodes: Sequence[Node], new: Sequence[int] | Mapping[int, int]) -> "Program":
        """The program with these nodes; new: the place of each old node among them."""
        return self._replace(
            nodes=tuple(nodes),
            results=tuple(new[place] for place in self.results),
            gates=tuple((name, new[place]) for name, place in self.gates),
            shown=tuple((name, new[place]) for name, place in self.shown),
        )

    def recurrent(self) -> tuple[str, ...]:
        """Names of the matrices that are trained and multiply something of size H inside the loop over time."""
        kinds = when(self.nodes)
        trained = {parameter.name for parameter in self.parameters if not parameter.fixed}
        names: dict[str, None] = {}
        for node in self.nodes:
            if node.op == "product" and kinds[node.args[0]] == LOOP and self.nodes[node.args[0]].size == "H":
                names[node.name] = None
        return tuple(name for name in names if name in trained)


STATIC, WINDOW, LOOP = 0, 1, 2
"""When a value can be computed: once; for all steps at once, because it depends on inputs only; step by step."""


def when(nodes: Sequence[Node]) -> list[int]:
    """STATIC, WINDOW or LOOP for each node."""
    kinds: list[int] = []
    for node in nodes:
        own_kind = {"input": WINDOW, "state": LOOP, "given": LOOP}.get(node.op, STATIC)
        kinds.append(max([own_kind, *(kinds[arg] for arg in node.args)]))
    return kinds


def ordered(ends: Iterable[int], arguments: Callable[[int], Iterable[int]]) -> list[int]:
    """What `ends` need, each after its arguments, depth first."""
    found: dict[int, None] = {}
    waiting = [*ends][::-1]
    while waiting:  # no recursion: a step may have thousands of operations
        missing = [arg for arg in arguments(waiting[-1]) if arg not in found]
        if missing:
            waiting += missing[::-1]
        else:
            found[waiting.pop()] = None
    return list(found)


def needed(nodes: Sequence[Node], ends: Iterable[int], leaves: Container[int] = ()) -> list[int]:
    """The places of the nodes that `ends` need, ascending; without what only `leaves` need."""
    places = {*ends}
    for place in reversed(range(len(nodes))):  # what needs a value comes behind it
        if place in places and place not in leaves:
            places.update(nodes[place].args)
    return sorted(places)


class Builder:
    """A growing list of nodes. Equal nodes become one, and sums with 0 and products with 1 are left out.

    A product with 0 stays: of ∞ or NaN it is NaN. So only constants are constant, and no operation is done here.
    """

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        self.nodes = list(nodes)
        self._known = {node: place for place, node in enumerate(nodes)}

    def put(self, node: Node) -> int:
        """The place of this node, which is appended unless there is an equal one."""
        if node not in self._known:
            self._known[node] = len(self.nodes)
            self.nodes.append(node)
        return self._known[node]

    def constant(self, number: float) -> int:
        return self.put(Node("constant", size="", number=float(number) + 0.0))  # −0 becomes 0, which it equals

    def apply(self, op: str, *args: int, size: Size | None = None) -> int:
        """An operation unit by unit; by default its size is the size of its arguments."""
        if (simple := self._simplified(op, args)) is not None:
            return simple
        nodes = [self.nodes[arg] for arg in args]
        known = next((node.size for node in nodes if node.size != ""), "") if size is None else size
        return self.put(Node(op, args, max(node.count for node in nodes), known))

    def part(self, value: int, index: int) -> int:
        """One of several vectors side by side."""
        node = self.nodes[value]
        if node.count == 1:
            return value
        return self.put(Node("part", (value,), 1, node.size, index=index))

    def opposite(self, value: int) -> int | None:
        """a, if the value is 0 − a."""
        node = self.nodes[value]
        if node.op != "sub" or self._number(node.args[0]) != 0.0:
            return None
        return node.args[1]

    def _number(self, value: int) -> float | None:
        node = self.nodes[value]
        return node.number if node.op == "constant" else None

    def _simplified(self, op: str, args: tuple[int, ...]) -> int | None:
        numbers = [self._number(arg) for arg in args]
        if op == "add" and 0.0 in numbers:
            return args[1 - numbers.index(0.0)]
        if op == "sub" and numbers[1] == 0.0:
            return args[0]
        if op in ("add", "sub") and (opposite := self.opposite(args[1])) is not None:
            return self.apply("sub" if op == "add" else "add", args[0], opposite)
        if op == "add" and (opposite := self.opposite(args[0])) is not None:
            return self.apply("sub", args[1], opposite)
        if op == "mul" and 1.0 in numbers:
            return args[1 - numbers.index(1.0)]
        if op == "div" and numbers[1] == 1.0:
            return args[0]
        return None


def scalarized(program: Program) -> Program:
    """The same program in single vectors. Only products and leaves keep several, and `part` takes one of them."""
    builder = Builder()
    single = [places[0] for places in scalars(builder, program.nodes)]
    return program.rebuilt(builder.nodes, single)


def scalars(builder: Builder, nodes: Sequence[Node]) -> list[list[int]]:
    """Put nodes into a builder as single vectors; returns the places of each node's vectors."""
    parts: list[list[int]] = []

    def gate(arg: int, k: int) -> int:
        """Vector k of an argument; one vector serves all gates."""
        return parts[arg][k if len(parts[arg]) > 1 else 0]

    for node in nodes:
        if node.op == "part":
            parts.append([parts[node.args[0]][node.index]])
        elif node.op in ("vector", "product", "window", "static", "given"):
            one = replace(node, args=tuple(parts[arg][0] for arg in node.args))
            whole = builder.put(one)
            parts.append([builder.part(whole, k) for k in range(node.count)])
        elif node.args:
            rows = [tuple(gate(arg, k) for arg in node.args) for k in range(node.count)]
            if node.op in ("normalize", "stop"):
                parts.append([builder.put(replace(node, args=row, count=1)) for row in rows])
            else:
                parts.append([builder.apply(node.op, *row, size=node.size) for row in rows])
        else:
            parts.append([builder.put(node)])
    return parts
