"""Both passes over a step of a loop: its derivative by reverse mode, and what the forward pass saves for it.

In three parts:

    GradientGraph    the gradients, as functions of the forward pass's values
    values_to_save   which of these values the forward pass saves; all others can be computed again
    with_loads       the backward pass, which loads or recomputes the values that the gradients need
"""

import functools
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from charlm.cells.cell import Cell
from charlm.cells.operations import OPERATIONS, UNARY, Formula
from charlm.cells.passes import Backward, Forward, Operand, Passes, Product, Rows, numbers
from charlm.cells.program import Builder, Node, Program, Size, needed, scalarized
from charlm.cells.split import Split, split
from charlm.cells.state_options import PLAIN, StateOptions, with_options

_CHEAP = ("add", "sub", "mul", "max", "min", "where", "greater", "stop", "relu")
"""Operations whose results are recomputed, not saved."""


@functools.lru_cache(maxsize=256)
def passes_of(program: Program, options: StateOptions = PLAIN) -> Passes:
    """Both passes of a step. Equal programs share them, and so their kernels."""
    return derive(split(with_options(program, options)))


def both_passes(
    general: Program | None, square: Program, options: StateOptions = PLAIN
) -> tuple[Passes | None, Passes]:
    """The passes of `Cell.programs`, in the same order: general, square."""
    return None if general is None else passes_of(general, options), passes_of(square, options)


def least_saved(cell: Cell) -> int:
    """A lower bound on the numbers saved for the backward pass, per step, unit and stream of a layer."""
    derived = passes_of(cell.program(square=True))
    operands = sum(derived.operands[k].size == "H" for k in derived.stored_operands)
    return len(cell.states) + len(derived.forward.saved.get("H", ())) + operands


def derive(split: Split) -> Passes:
    """Both passes of a split program."""
    loop = scalarized(split.loop)
    nodes = loop.nodes
    operand_indices: dict[int, int] = {}
    products: list[Product] = []
    for node in nodes:
        if node.op != "product":
            continue
        operand = operand_indices.setdefault(node.args[0], len(operand_indices))
        products.append(Product(node.name, node.index, node.count, node.size, operand, node.transposed))
    operands: list[Operand] = []
    for place in operand_indices:
        state = nodes[place].name if nodes[place].op == "state" else ""
        operands.append(Operand(place, nodes[place].size, state))

    graph = GradientGraph(loop)
    forward_nodes = graph.forward.nodes
    loads = _in_memory(loop, operand_indices)
    saved: dict[Size, Rows] = {}
    for place in values_to_save(forward_nodes, loads, graph.values):
        size = forward_nodes[place].size
        others = saved.get(size, ())
        loads[place] = Node("saved", size=size, index=len(others))
        saved[size] = (*others, place)
    backward_nodes, new = with_loads(graph, loads)

    forward = Forward(forward_nodes, dict(zip(loop.states, loop.results, strict=True)), saved)
    d_states = {name: new[place] for name, place in graph.states.items()}
    d_rows: dict[str, dict[int, Rows]] = {"product": {}, "window": {}, "static": {}}
    for place, vectors in graph.rows.items():
        index = graph.numbers.get(place, nodes[place].index)
        d_rows[nodes[place].op][index] = tuple(new[vector] for vector in vectors)
    backward = Backward(backward_nodes, d_states, d_rows["product"], d_rows["window"], d_rows["static"])
    normalizations = tuple(node for node in nodes if node.op == "normalize")
    return Passes(split, tuple(operands), tuple(products), normalizations, forward, backward)


# 1. The gradients


class GradientGraph:
    """The gradients of a loop, by reverse mode.

    forward    the loop, and what only gradients need of the forward pass
    back       the gradients; a node `value` with index k stands for node k of the forward pass
    of         the gradient of each node of the loop that has one
    rows       the gradients of the vectors of each product and leaf, without states
    """

    def __init__(self, loop: Program) -> None:
        self.loop, self.forward, self.back = loop, Builder(loop.nodes), Builder()
        self.of: dict[int, int] = {}
        self.rows: dict[int, Rows] = {}
        self.numbers = numbers(loop.nodes)
        nodes = [*enumerate(loop.nodes)]
        self._parts = {(node.args[0], node.index): place for place, node in nodes if node.op == "part"}
        for name, place in zip(loop.states, loop.results, strict=True):
            self.add(place, self.back.put(Node("d_state", name=name)))
        for place, node in reversed(nodes):
            if rule := _RULES.get(node.op):
                rule(self, place)

    def add(self, place: int, term: int) -> None:
        """Add to the gradient of a node."""
        self.of[place] = self.back.apply("add", self.of[place], term) if place in self.of else term

    def value(self, place: int) -> int:
        """A value of the forward pass."""
        node = self.forward.nodes[place]
        if node.op == "constant":
            return self.back.constant(node.number)
        return self.back.put(Node("value", size=node.size, index=place))

    def add_rows(self, place: int) -> bool:
        """Set the gradients of the vectors of a leaf or product; returns whether there are any."""
        count, zero = self.loop.nodes[place].count, self.back.constant(0.0)
        # −1: nothing uses this vector.
        vectors = [place] if count == 1 else [self._parts.get((place, k), -1) for k in range(count)]
        self.rows[place] = tuple(self.of.get(vector, zero) for vector in vectors)
        return not self.of.keys().isdisjoint(vectors)

    def add_formula(self, place: int, arg: int, formula: Formula) -> None:
        """Add to the gradient of an argument of a node, such as d ⊙ b for y = a ⊙ b."""
        node = self.loop.nodes[place]
        letters = dict(zip("yab", (place, *node.args), strict=False))

        def lookup(part: Formula) -> int | None:
            if part.op == "in_forward":
                in_forward = _put_formula(self.forward, part.args[0], lambda letter: letters.get(letter.op), node.size)
                return self.value(in_forward)
            if part.op == "d":
                return self.of[place]
            return self.value(letters[part.op]) if part.op in letters else None

        if self.loop.nodes[arg].op not in ("constant", "greater"):
            self.add(arg, _put_formula(self.back, formula, lookup, node.size))

    @functools.cached_property
    def states(self) -> dict[str, int]:
        """The gradient of each state before the step, without its products' share."""
        found = [(node.name, place) for place, node in enumerate(self.loop.nodes) if node.op == "state"]
        return {name: self.of[place] for name, place in found if place in self.of}

    @functools.cached_property
    def live(self) -> set[int]:
        """The nodes of `back` that are of use."""
        ends = [*self.states.values()]
        for vectors in self.rows.values():
            ends += vectors
        ends += [place for place, node in enumerate(self.back.nodes) if node.op == "product_back"]
        return {*needed(self.back.nodes, ends)}

    @property
    def values(self) -> set[int]:
        """The nodes of the forward pass whose values are of use."""
        nodes = self.back.nodes
        return {nodes[place].index for place in self.live if nodes[place].op == "value"}


def _of_product(graph: GradientGraph, place: int) -> None:
    has_gradient = graph.add_rows(place)
    [arg] = graph.loop.nodes[place].args
    operand = graph.loop.nodes[arg]
    back = Node("product_back", graph.rows[place], 1, operand.size, index=graph.numbers[place])
    result = graph.back.put(back)
    # A state gets this share elsewhere: see `Passes.through`. Without a gradient, 0 must not reach the operand: it
    # could be divided by 0 there.
    if operand.op != "state" and has_gradient:
        graph.add(arg, result)


def _of_normalization(graph: GradientGraph, place: int) -> None:
    if place in graph.of:
        node = graph.loop.nodes[place]
        args = graph.of[place], graph.value(place)
        back = Node("normalize_back", args, 1, node.size, index=graph.numbers[place])
        graph.add(node.args[0], graph.back.put(back))


def _of_operation(graph: GradientGraph, place: int) -> None:
    node = graph.loop.nodes[place]
    for arg, formula in zip(node.args, OPERATIONS[node.op].gradients, strict=True):
        if place in graph.of and formula is not None:
            graph.add_formula(place, arg, formula)


def _of_extreme(graph: GradientGraph, place: int) -> None:
    """A maximum or minimum with a number: the argument gets all of the gradient, also where it equals the number."""
    nodes = graph.loop.nodes
    if not any(nodes[arg].op == "constant" for arg in nodes[place].args):
        _of_operation(graph, place)
    elif place in graph.of:
        for arg, own, other in zip(nodes[place].args, "ab", "ba", strict=True):
            own, other = Formula(own), Formula(other)
            loses = other > own if nodes[place].op == "max" else own > other
            graph.add_formula(place, arg, Formula("where", (loses, 0.0, Formula("d"))))


_Rule = Callable[[GradientGraph, int], object]
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(OPERATIONS, _of_operation),
    **dict.fromkeys(("max", "min"), _of_extreme),
    **dict.fromkeys(("window", "static", "vector", "input"), GradientGraph.add_rows),
    "product": _of_product,
    "normalize": _of_normalization,
}
"""What a node adds to the gradients of its arguments. The other operations add nothing."""


def _put_formula(
    builder: Builder, formula: Formula | float, lookup: Callable[[Formula], int | None], size: Size
) -> int:
    """Put a formula into a builder. lookup: the place of a letter, or of another formula that needs no putting."""
    if not isinstance(formula, Formula):
        return builder.constant(formula)
    if (place := lookup(formula)) is not None:
        return place
    args = [_put_formula(builder, arg, lookup, size) for arg in formula.args]
    return builder.apply(formula.op, *args, size=size)


# 2. The values to save


def _in_memory(loop: Program, operands: Mapping[int, int]) -> dict[int, Node]:
    """The node of the backward pass for each value in memory."""
    nodes = loop.nodes
    loads: dict[int, Node] = {}
    for place, k in operands.items():
        loads[place] = Node("operand", size=nodes[place].size, index=k)
    for name, place in zip(loop.states, loop.results, strict=True):
        loads[place] = Node("after", size=nodes[place].size, name=name)
    for place, node in enumerate(nodes):
        if node.op in ("constant", "given"):
            loads[place] = node
        elif node.op == "state":
            loads[place] = Node("before", size=node.size, name=node.name)
    return loads


def values_to_save(nodes: Sequence[Node], memory: Container[int], required: Container[int]) -> list[int]:
    """What to save so that every required value can be loaded or recomputed. memory: values that need no saving.

    An example, c = f ⊙ c₋₁ + … with f = σ(W x + R h), where both c are states:

        value       plain   available
        c, c₋₁      yes     yes: in memory
        f           no      saved: its argument has a product, which is not in memory
        tanh(c)     no      recomputed: one function of a plain value. (A function of tanh(c) would be saved.)
        f ⊙ c₋₁     no      recomputed: cheap, of available values
    """
    saved: list[int] = []
    plain: set[int] = set()  # in memory, or arithmetic and normalization of such values
    available: set[int] = set()  # can be loaded or recomputed
    for place, node in enumerate(nodes):
        whole = nodes[node.args[0]] if node.op == "part" else node
        in_memory = place in memory or node.op == "constant" or whole.op in ("static", "window", "given")
        if in_memory or (node.op in (*_CHEAP, "normalize") and plain.issuperset(node.args)):
            plain.add(place)
        is_cheap = node.op in (*_CHEAP, "div") and available.issuperset(node.args)
        # Recomputing one function of values in memory costs less than writing and reading its result.
        is_function = node.op in (*UNARY, "normalize") and plain.issuperset(node.args)
        if in_memory or is_cheap or is_function:
            available.add(place)
        elif place in required:
            available.add(place)
            saved.append(place)
    return saved


# 3. The backward pass with loads


def with_loads(graph: GradientGraph, loads: Mapping[int, Node]) -> tuple[list[Node], dict[int, int]]:
    """The backward pass, and the new place of each node of the graph. loads: the nodes that load forward values."""
    back, forward = Builder(), graph.forward.nodes

    def copy(node: Node, args: Rows) -> int:
        if node.op in OPERATIONS:
            return back.apply(node.op, *args, size=node.size)
        return back.put(replace(node, args=args))

    values: dict[int, int] = {}
    for place in needed(forward, graph.values, leaves=loads):
        node = forward[place]
        if place in loads:
            values[place] = back.put(loads[place])
            if node.op == "greater":
                values[place] = back.apply("greater", values[place], back.constant(0.5), size=node.size)
            continue
        args = tuple(values[arg] for arg in node.args)
        if node.op == "normalize":
            values[place] = back.put(Node("normalized", args, 1, node.size, index=graph.numbers[place]))
        elif node.op == "stop":
            values[place] = args[0]
        else:
            values[place] = copy(node, args)
    new: dict[int, int] = {}
    for place, node in enumerate(graph.back.nodes):
        if node.op == "value" and place in graph.live:
            new[place] = values[node.index]
        elif node.op != "value" and all(arg in new for arg in node.args):
            new[place] = copy(node, tuple(new[arg] for arg in node.args))
    return back.nodes, new
