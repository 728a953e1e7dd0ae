"""Splits a program: the part before the loop over time, and the loop."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from charlm.cells.program import STATIC, WINDOW, Builder, Node, Program, needed, scalarized, when, without_arrays


class Split(NamedTuple):
    """A program split in two. `windows` and `vectors` are places in the whole program."""

    program: Program
    windows: tuple[int, ...]
    """Values that the loop reads, computed for all steps at once: products of the input, and their biases."""
    vectors: tuple[int, ...]
    """Values that the loop reads and that depend on parameters only."""
    loop: Program
    """The rest. Its leaves are states, constants, and nodes `window` and `static` with an `index` into `windows` or
    `vectors`."""
    with_sums: Program
    """See `with_sums_in_products`."""
    loop_with_sums: Program


def equations_only(program: Program) -> Program:
    """What the new states need, without initial values of what is trained: equal for steps that compute the same."""
    nodes, new, _ = _cut(program.nodes, program.results, lambda place: None)
    parameters = []
    for one in program.parameters:
        starts = without_arrays(one.starts) if one.fixed else ()
        parameters.append(one._replace(starts=starts, bound=None))
    return program._replace(parameters=tuple(parameters), gates=(), shown=()).rebuilt(nodes, new)


def split(program: Program, *, looked_at: bool = False) -> Split:
    """Split a program, without initial values and what no result needs. looked_at: with what people look at."""
    program = program._replace(parameters=tuple(one._replace(starts=()) for one in program.parameters))
    kinds = when(program.nodes)
    loop = program if looked_at else program._replace(gates=(), shown=())
    ends = [*loop.results, *(place for _, place in (*loop.gates, *loop.shown))]
    # Whether a value can be computed for all steps, as a product, a normalization, or a sum of these. Elementwise
    # functions stay in the loop: computing them there costs less than writing and reading their results.
    linear: list[bool] = []
    for place, node in enumerate(program.nodes):
        if node.op in ("add", "sub"):
            linear.append(all(kinds[arg] == STATIC or linear[arg] for arg in node.args))
        else:
            linear.append(kinds[place] == WINDOW and node.op in ("product", "normalize", "input"))

    def leaf(place: int) -> str | None:
        if program.nodes[place].op in _IN_THE_LOOP or (kinds[place] != STATIC and not linear[place]):
            return None
        return "window" if kinds[place] == WINDOW else "static"

    nodes, new, leaves = _cut(program.nodes, ends, leaf)
    loop = loop.rebuilt(nodes, new)
    with_sums, loop_with_sums = with_sums_in_products(program), with_sums_in_products(loop)
    return Split(program, leaves["window"], leaves["static"], loop, with_sums, loop_with_sums)


_IN_THE_LOOP = ("constant", "part", "greater")
"""No leaves: a value from before the loop stays whole, and the loop takes its parts; a kernel reads numbers only."""


def _cut(
    nodes: Sequence[Node], ends: Iterable[int], leaf: Callable[[int], str | None]
) -> tuple[list[Node], dict[int, int], dict[str, tuple[int, ...]]]:
    """The nodes that `ends` need, the new place of each, and the old places of leaves.

    leaf: "window" or "static", which then stands for a node; None to go on to its arguments.
    """
    ops = {place: op for place in range(len(nodes)) if (op := leaf(place))}
    leaves: dict[str, list[int]] = {"window": [], "static": []}
    new: dict[int, int] = {}
    built: list[Node] = []
    for place in needed(nodes, ends, leaves=ops):
        node = nodes[place]
        if op := ops.get(place):
            node = Node(op, (), node.count, node.size, index=len(leaves[op]))
            leaves[op].append(place)
        else:
            node = replace(node, args=tuple(new[arg] for arg in node.args))
        new[place] = len(built)
        built.append(node)
    return built, new, {op: tuple(places) for op, places in leaves.items()}


def with_sums_in_products(program: Program) -> Program:
    """The program as PyTorch computes it: a product that nothing but a sum uses takes the other summand as args[1].

    It takes the place of the sum.
    """
    uses = Counter(arg for node in program.nodes for arg in node.args)
    nodes = list(program.nodes)
    for place, node in enumerate(program.nodes):
        if node.op != "add":
            continue
        for one, other in (node.args, node.args[::-1]):
            product, added = program.nodes[one], program.nodes[other]
            if product.op != "product" or uses[one] > 1 or added.op == "constant":
                continue
            if product.count == added.count == node.count:
                nodes[place] = replace(product, args=(*product.args, other))
                break
    return program._replace(nodes=tuple(nodes))


class Before(NamedTuple):
    """The part before the loop as a program of its own, for a kernel that gets the input step by step."""

    program: Program
    """Its results are the vectors of all windows, in order; its leaves are `input`, `constant` and `static`."""
    vectors: tuple[int, ...]
    """The node of the whole program for each `static`."""
    operands: tuple[int, ...]
    """The distinct operands of the products."""
    norms: tuple[Node, ...]


def before_loop(split: Split) -> Before:
    """The program that computes the windows."""
    nodes, kinds = split.program.nodes, when(split.program.nodes)

    def leaf(place: int) -> str | None:
        return "static" if kinds[place] != WINDOW and nodes[place].op not in _IN_THE_LOOP else None

    built, new, leaves = _cut(nodes, split.windows, leaf)
    builder = Builder(built)
    results: list[int] = []
    for place in split.windows:
        results += [builder.part(new[place], k) for k in range(nodes[place].count)]
    program = split.program._replace(nodes=tuple(builder.nodes), results=tuple(results), gates=(), shown=())
    program = scalarized(program)
    operands = tuple(dict.fromkeys(node.args[0] for node in program.nodes if node.op == "product"))
    norms = tuple(node for node in program.nodes if node.op == "normalize")
    return Before(program, leaves["static"], operands, norms)
