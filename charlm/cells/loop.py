"""Splits a program: what can be computed before the loop over time, and the loop."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from charlm.cells.program import STATIC, WINDOW, Builder, Node, Program, scalarized, when


class Split(NamedTuple):
    """A program in two parts. Node numbers of `windows` and `vectors` are those of the whole program."""

    program: Program
    windows: tuple[int, ...]
    """Values that the loop reads, computed for all steps at once: products of the input, and their biases."""
    vectors: tuple[int, ...]
    """Values that the loop reads and that depend on parameters only."""
    loop: Program
    """The rest. Its leaves are states, constants, and the nodes `window` and `static`, whose index is the place in
    `windows` or `vectors`."""
    additions: dict[int, tuple[int, int]]
    """Sums of a product, which nothing else uses, and something else: the node → (product, the other)."""
    loop_additions: dict[int, tuple[int, int]]
    """Those in the loop."""


def split(program: Program) -> Split:
    """Both parts of a program. What the results do not need is in neither of them; nor are initial values."""
    program = program._replace(parameters=tuple(one._replace(starts=()) for one in program.parameters))
    kinds = when(program.nodes)
    ends = (*program.results, *(place for _, place in (*program.gates, *program.shown)))
    # Whether a value of all steps is a product, a normalization, or a sum of these: what a loop had better read.
    # Functions unit by unit cost less in the loop than to write and read their results.
    linear: list[bool] = []
    for place, node in enumerate(program.nodes):
        if node.op in ("add", "sub"):
            linear.append(all(kinds[arg] == STATIC or linear[arg] for arg in node.args))
        else:
            linear.append(kinds[place] == WINDOW and node.op in ("product", "normalize", "input"))

    def leaf(place: int) -> str | None:
        # Parts of a value from before the loop are taken inside, so that it stays whole.
        if program.nodes[place].op in ("constant", "part") or (kinds[place] != STATIC and not linear[place]):
            return None
        return "window" if kinds[place] == WINDOW else "static"

    nodes, new, leaves = _cut(program.nodes, ends, leaf)
    loop = program._replace(
        nodes=tuple(nodes),
        results=tuple(new[place] for place in program.results),
        gates=tuple((name, new[place]) for name, place in program.gates),
        shown=tuple((name, new[place]) for name, place in program.shown),
    )
    additions = additions_of_products(program), additions_of_products(loop)
    return Split(program, leaves["window"], leaves["static"], loop, *additions)


def _cut(
    nodes: Sequence[Node], ends: Iterable[int], leaf: Callable[[int], str | None]
) -> tuple[list[Node], dict[int, int], dict[str, tuple[int, ...]]]:
    """What `ends` need, down to leaves: the new nodes, the new place of each, and the old places of leaves.

    leaf: the operation, window or static, that stands for a node; None to go on to its arguments.
    """
    found: dict[int, str | None] = {}
    ready = list(ends)
    while ready:
        place = ready.pop()
        if place not in found:
            found[place] = leaf(place)
            ready += () if found[place] else nodes[place].args
    leaves = {op: tuple(place for place in sorted(found) if found[place] == op) for op in ("window", "static")}
    built: list[Node] = []
    new: dict[int, int] = {}
    for place in sorted(found):
        node, op = nodes[place], found[place]
        if op:
            node = Node(op, (), node.count, node.size, index=leaves[op].index(place))
        else:
            node = replace(node, args=tuple(new[arg] for arg in node.args))
        new[place] = len(built)
        built.append(node)
    return built, new, leaves


def additions_of_products(program: Program) -> dict[int, tuple[int, int]]:
    """Sums of a product and something else that nothing else uses: the node of the sum → (product, the other)."""
    uses = [arg for node in program.nodes for arg in node.args]
    found = {}
    for place, node in enumerate(program.nodes):
        if node.op != "add":
            continue
        for one, other in (node.args, node.args[::-1]):
            product, added = program.nodes[one], program.nodes[other]
            whole = product.count == added.count == node.count and added.op != "constant"
            if product.op == "product" and uses.count(one) == 1 and whole:
                found[place] = (one, other)
                break
    return found


class Before(NamedTuple):
    """What is computed before the loop, as a program of its own: for a kernel that has the input of one step only."""

    program: Program
    """Its results are all vectors of the first window, then of the next; its leaves are `input`, `constant` and
    `static`."""
    vectors: tuple[int, ...]
    """Nodes of the whole program that `static` stands for."""
    products: tuple[int, ...]
    """Its nodes that are products."""
    operands: tuple[int, ...]
    """Its nodes that these multiply."""
    norms: tuple[Node, ...]
    """Its nodes that are normalizations."""


def before_loop(parts: Split) -> Before:
    """The windows of a split program."""
    nodes, kinds = parts.program.nodes, when(parts.program.nodes)

    def leaf(place: int) -> str | None:
        return "static" if kinds[place] != WINDOW and nodes[place].op not in ("constant", "part") else None

    built, new, leaves = _cut(nodes, parts.windows, leaf)
    builder = Builder(built)
    results = [builder.part(new[place], k) for place in parts.windows for k in range(nodes[place].count)]
    program = parts.program._replace(nodes=tuple(builder.nodes), results=tuple(results), gates=(), shown=())
    program = scalarized(program)
    products = tuple(place for place, node in enumerate(program.nodes) if node.op == "product")
    operands = tuple(dict.fromkeys(program.nodes[place].args[0] for place in products))
    norms = tuple(node for node in program.nodes if node.op == "normalize")
    return Before(program, leaves["static"], products, operands, norms)
