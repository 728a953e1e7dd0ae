"""The derivative of a step by reverse mode, and the values that the forward pass saves for it."""

import functools
import math
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import replace

from charlm.cells.cell import Cell
from charlm.cells.loop import Split, split
from charlm.cells.passes import Normalization, Operand, Pass, Passes, Product, Rows, numbered
from charlm.cells.program import BINARY, UNARY, Builder, Node, Program, Size, needed, reached, scalarized

NEGLIGIBLE = -60.0
"""exp of a smaller number is too small to matter as a gradient in single precision."""
_CHEAP = ("add", "sub", "mul", "max", "min", "where", "greater", "stop", "relu")
"""Operations whose results are recomputed, not saved."""


@functools.lru_cache(maxsize=64)
def passes_of(program: Program) -> Passes:
    """Both passes of a step. Equal programs share them, and so their kernels."""
    return passes(split(program))


def both_passes(general: Program | None, square: Program) -> tuple[Passes | None, Passes]:
    """The passes of `Cell.programs`."""
    return None if general is None else passes_of(general), passes_of(square)


def least_saved(cell: Cell) -> int:
    """A lower bound on the numbers saved for the backward pass, per step, unit and stream of a layer."""
    derived = passes_of(cell.program(square=True))
    operands = sum(derived.operands[k].size == "H" for k in derived.stored_operands)
    return len(cell.states) + len(derived.forward.saved.get("H", ())) + operands


def passes(split: Split) -> Passes:
    """Both passes of a split program."""
    loop = scalarized(split.loop)
    nodes = loop.nodes
    product_places = numbered(nodes, "product")
    operand_places = dict.fromkeys(nodes[place].args[0] for place in product_places)
    operands = {place: index for index, place in enumerate(operand_places)}

    forward, back = Builder(nodes), Builder()
    gradients, rows = _gradients(loop, forward, back)
    states = {node.name: place for place, node in enumerate(nodes) if node.op == "state"}
    d_states = {name: gradients[place] for name, place in states.items() if place in gradients}
    ends = [*d_states.values(), *(row for vectors in rows.values() for row in vectors)]
    ends += [place for place, node in enumerate(back.nodes) if node.op == "product_back"]
    live = {*needed(back.nodes, ends)}
    required = {back.nodes[place].index for place in live if back.nodes[place].op == "value"}

    loads = _loads(loop, forward, operands)
    chosen = _values_to_save(forward, loads, required)
    saved: dict[Size, list[int]] = {}
    for place in sorted({*chosen.values()}):
        saved.setdefault(forward.nodes[place].size, []).append(place)
    slots = {number: index for numbers in saved.values() for index, number in enumerate(numbers)}
    for place, number in chosen.items():
        loads[place] = loads[number] = Node("saved", size=forward.nodes[number].size, index=slots[number])
    final, new = _rewritten(forward, back, live, required, loads)

    ahead = Pass(forward.nodes, dict(zip(loop.states, loop.results, strict=True)))
    ahead.saved = {size: tuple(places) for size, places in saved.items()}
    backward = Pass(final, {name: new[place] for name, place in d_states.items()})
    backward.gradients = {place: new[gradients[place]] for place in sorted(gradients) if gradients[place] in new}
    for place, vectors in rows.items():
        moved = tuple(new[vector] for vector in vectors)
        match nodes[place].op:
            case "product":
                backward.products[product_places[place]] = moved
            case "window":
                backward.windows[nodes[place].index] = moved
            case "static":
                backward.vectors[nodes[place].index] = moved
    return _passes(split, operands, ahead, backward)


def _passes(split: Split, operands: dict[int, int], forward: Pass, backward: Pass) -> Passes:
    """Both passes, with what belongs to them together. operands: the index of each operand, by its place."""
    nodes, whole = forward.nodes, split.program.nodes
    products = [
        Product(nodes[p].name, nodes[p].index, nodes[p].count, nodes[p].size, operands[nodes[p].args[0]])
        for p in numbered(nodes, "product")
    ]
    norms = [nodes[place] for place in numbered(nodes, "normalize")]
    state_of = [nodes[place].name if nodes[place].op == "state" else "" for place in operands]
    through: dict[str, Rows] = dict.fromkeys(forward.states, ())
    for index, product in reversed([*enumerate(products)]):
        if state := state_of[product.operand]:
            through[state] = (*through[state], index)
    of_products = {(vectors, products[k].size): k for k, vectors in backward.products.items()}

    def like(gradients: dict[int, Rows], places: Rows) -> dict[int, int]:
        keys = {k: (vectors, whole[places[k]].size) for k, vectors in gradients.items()}
        return {k: of_products[key] for k, key in keys.items() if key in of_products}

    return Passes(
        split,
        tuple(Operand(place, nodes[place].size, state) for place, state in zip(operands, state_of, strict=True)),
        tuple(products),
        tuple(Normalization(norm.size, norm.number, not norm.index) for norm in norms),
        forward,
        backward,
        through,
        like(backward.windows, split.windows),
        like(backward.vectors, split.vectors),
    )


# 1. The gradients


def _gradients(loop: Program, forward: Builder, back: Builder) -> tuple[dict[int, int], dict[int, Rows]]:
    """Put the gradients of a loop's nodes into `back`; returns the place of each, and those of vectors side by side.

    A node `value` with index k is node k of the forward pass, to which nodes that only the gradients need are added.
    """
    parts = {(node.args[0], node.index): place for place, node in enumerate(loop.nodes) if node.op == "part"}
    products, norms = numbered(loop.nodes, "product"), numbered(loop.nodes, "normalize")
    uses = Counter(arg for node in loop.nodes for arg in node.args)
    gradients: dict[int, int] = {}
    rows: dict[int, Rows] = {}

    def add(place: int, term: int) -> None:
        known = gradients.get(place)
        gradients[place] = term if known is None else back.apply("add", known, term)

    for name, place in zip(loop.states, loop.results, strict=True):
        add(place, back.put(Node("d_state", name=name)))
    for place, node in reversed([*enumerate(loop.nodes)]):
        if node.op in ("product", "window", "static"):
            zero = back.constant(0.0)
            vectors = [place] if node.count == 1 else [parts.get((place, k), -1) for k in range(node.count)]
            rows[place] = tuple(gradients.get(vector, zero) for vector in vectors)
            if node.op == "product":
                operand = loop.nodes[node.args[0]]
                result = back.put(Node("product_back", rows[place], 1, operand.size, index=products[place]))
                # Without a gradient, 0 must not reach the operand: it could be divided by 0 there.
                if operand.op != "state" and not gradients.keys().isdisjoint(vectors):
                    add(node.args[0], result)
        elif node.op == "normalize" and place in gradients:
            args = gradients[place], _value(forward, back, place)
            add(node.args[0], back.put(Node("normalize_back", args, 1, node.size, index=norms[place])))
        elif place in gradients:
            for arg, term in _terms(uses, forward, back, place, gradients[place]):
                if forward.nodes[arg].op not in ("constant", "greater"):
                    add(arg, term)
    return gradients, rows


def _terms(uses: Counter[int], forward: Builder, back: Builder, place: int, d: int) -> Iterator[tuple[int, int]]:
    """The arguments of a node whose gradient is d, and the term that it adds to their gradients."""
    node, do, number = forward.nodes[place], back.apply, back.constant
    args, size = node.args, node.size
    value = functools.partial(_value, forward, back)
    match node.op:
        case "add":
            yield args[0], d
            yield args[1], d
        case "sub":
            yield args[0], d
            yield args[1], do("sub", number(0.0), d)
        case "mul":
            yield args[0], do("mul", d, value(args[1]), size=size)
            yield args[1], do("mul", d, value(args[0]), size=size)
        case "div":
            over = do("div", d, value(args[1]), size=size)
            yield args[0], over
            yield args[1], do("sub", number(0.0), do("mul", over, value(place)))
        case "exp":
            yield args[0], do("mul", d, value(place))
        case "log":
            yield args[0], do("div", d, value(args[0]))
        case "tanh":
            y = value(place)
            yield args[0], do("mul", d, do("sub", number(1.0), do("mul", y, y)))
        case "sigmoid":
            y = value(place)
            yield args[0], do("mul", do("mul", d, y), do("sub", number(1.0), y))
        case "softplus":
            yield args[0], do("mul", d, value(forward.apply("sigmoid", args[0])))
        case "relu":
            positive = do("greater", value(place), number(0.0))
            yield args[0], do("where", positive, d, number(0.0), size=back.nodes[d].size)
        case "sqrt":
            yield args[0], do("div", do("mul", d, number(0.5)), value(place))
        case "where":
            condition = value(args[0])
            yield args[1], do("where", condition, d, number(0.0), size=back.nodes[d].size)
            yield args[2], do("where", condition, number(0.0), d, size=back.nodes[d].size)
        case "max" | "min":
            is_number = [forward.nodes[arg].op == "constant" for arg in args]
            if any(is_number):
                other = args[is_number.index(False)]
                beyond = _beyond(uses, forward, back, place, args[is_number.index(True)], other)
                yield other, do("where", beyond, number(0.0), d, size=back.nodes[d].size)
            else:
                to_first = do("mul", d, value(_share_of_first(forward, node)))
                yield args[0], to_first
                yield args[1], do("sub", d, to_first)


def _value(forward: Builder, back: Builder, place: int) -> int:
    """A value of the forward pass, as a node of the backward pass."""
    node = forward.nodes[place]
    return back.constant(node.number) if node.op == "constant" else back.put(Node("value", size=node.size, index=place))


def _beyond(uses: Counter[int], forward: Builder, back: Builder, place: int, number: int, other: int) -> int:
    """Whether the maximum or minimum of a number and another value is the number. At equality it is not."""
    node, bound = forward.nodes[place], forward.nodes[number].number
    compared = [_value(forward, back, number), _value(forward, back, other)]
    exponential = forward.find(Node("exp", (place,), 1, node.size))
    if node.op == "max" and bound < NEGLIGIBLE and exponential is not None and uses[place] == 1:
        # Compare its exponential, which is saved anyway. At the bound the gradient is negligible, so rounding
        # either way is harmless.
        compared = [back.constant(math.exp(bound) * 1.000001), _value(forward, back, exponential)]
    return back.apply("greater", *(compared if node.op == "max" else compared[::-1]), size=node.size)


def _share_of_first(forward: Builder, node: Node) -> int:
    """The share of a maximum's or minimum's gradient that its first argument gets: 1, 0, or 0.5 if both are equal."""
    wins = [forward.apply("greater", *node.args), forward.apply("greater", *node.args[::-1])]
    first_wins, second_wins = wins if node.op == "max" else wins[::-1]
    number = forward.constant
    one = number(1.0)
    return forward.apply("where", first_wins, one, forward.apply("where", second_wins, number(0.0), number(0.5)))


# 2. The values to save


def _loads(loop: Program, forward: Builder, operands: dict[int, int]) -> dict[int, Node]:
    """The node of the backward pass for each value in memory: constants, states, operands of products."""
    nodes = forward.nodes
    loads = {place: Node("operand", size=nodes[place].size, index=k) for place, k in operands.items()}
    for name, place in zip(loop.states, loop.results, strict=True):
        loads[place] = Node("after", size=nodes[place].size, name=name)
    for place, node in enumerate(nodes):
        if node.op == "constant":
            loads[place] = node
        elif node.op == "state":
            loads[place] = Node("before", size=node.size, name=node.name)
    return loads


def _values_to_save(forward: Builder, loads: Container[int], required: Container[int]) -> dict[int, int]:
    """What to save so that every required value can be loaded or recomputed.

    Returns for each such value the node that is saved: the value itself; for a condition, 1 or 0.
    """
    chosen: dict[int, int] = {}
    plain: set[int] = set()  # in memory, or arithmetic and normalization of such values
    known: set[int] = set()  # can be loaded or recomputed
    for place, node in enumerate(tuple(forward.nodes)):
        whole = forward.nodes[node.args[0]] if node.op == "part" else node
        in_memory = place in loads or whole.op in ("static", "window")
        if in_memory or (node.op in (*_CHEAP, "normalize") and plain.issuperset(node.args)):
            plain.add(place)
        again = node.op in (*_CHEAP, "div") and known.issuperset(node.args)
        # Recomputing one function of values in memory costs less than writing and reading its result.
        again = again or (node.op in (*UNARY, "normalize") and plain.issuperset(node.args))
        if in_memory or again:
            known.add(place)
        elif place in required:
            known.add(place)
            chosen[place] = place
            if node.op == "greater":
                one, zero = forward.constant(1.0), forward.constant(0.0)
                chosen[place] = forward.apply("where", place, one, zero, size=node.size)
    return chosen


# 3. The backward pass with loads


def _rewritten(
    forward: Builder, back: Builder, live: Container[int], required: set[int], loads: dict[int, Node]
) -> tuple[list[Node], dict[int, int]]:
    """The backward pass, whose values are loaded or computed again; and the new place of each of its nodes."""
    final = Builder()
    norms = numbered(forward.nodes, "normalize")

    def put(node: Node, args: Rows) -> int:
        if node.op in (*UNARY, *BINARY, "where"):
            return final.apply(node.op, *args, size=node.size)
        return final.put(replace(node, args=args))

    values: dict[int, int] = {}
    places = reached(forward.nodes, sorted(required), leaves=loads)
    for place in (place for place in places if place in loads):
        values[place] = final.put(loads[place])
        if forward.nodes[place].op == "greater":
            half = final.constant(0.5)
            values[place] = final.apply("greater", values[place], half, size=forward.nodes[place].size)
    for place in sorted(places):
        node = forward.nodes[place]
        if place not in loads:
            args = tuple(values[arg] for arg in node.args)
            if node.op == "normalize":
                values[place] = final.put(Node("normalized", args, 1, node.size, index=norms[place]))
            else:
                values[place] = args[0] if node.op == "stop" else put(node, args)
    new: dict[int, int] = {}
    for place, node in enumerate(back.nodes):
        if node.op == "value":
            if place in live:
                new[place] = values[node.index]
        elif all(arg in new for arg in node.args):
            new[place] = put(node, tuple(new[arg] for arg in node.args))
    return final.nodes, new
