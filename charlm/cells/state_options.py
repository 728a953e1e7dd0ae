"""State dropout, zoneout, resets and learned initial states: rewrites of a cell's program.

Loops, kernels and their derivatives know nothing of them.

A rewritten program reads tensors that a call gives besides the input, `given` by name:

    keep      [T, B, 1]         0 where a stream has its initial state before the step, else 1
    mask      [1, B, H]         state dropout: multiplies the operands of size H of the recurrent products
    zoneout   [T, B, S · H]     the share of its previous value that each unit keeps, of all S states side by side

Where T or B is 1, all steps or streams have the same.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from charlm.cells.program import LOOP, START, Builder, Node, Parameter, Program, when


class StateOptions(NamedTuple):
    """Which rewrites a layer needs."""

    resets: bool = False
    mask: bool = False
    zoneout: bool = False


PLAIN, ALL = StateOptions(), StateOptions(resets=True, mask=True, zoneout=True)


def with_options(program: Program, options: StateOptions) -> Program:
    """The program whose results have these options."""
    if options.zoneout:
        program = _with_zoneout(program)
    if options.mask:
        program = _with_mask(program)
    if options.resets:
        program = _with_resets(program)
    return program


def with_learned_start(program: Program) -> Program:
    """The program with a parameter for its initial states. Internal states mean something only together: they start
    from zeros, where a step is known to be finite.
    """
    learned = [name for name in program.states if name not in program.internal]
    start = Parameter(START, gates=len(learned), starts=(0.0,) * len(learned))
    return program._replace(parameters=(*program.parameters, start))


def rows_of_start(program: Program) -> dict[str, int]:
    """The row of the parameter START for each state that has one; the others start from zeros."""
    if all(parameter.name != START for parameter in program.parameters):
        return {}
    learned = [name for name in program.states if name not in program.internal]
    return {name: row for row, name in enumerate(learned)}


def with_expected_zoneout(program: Program, p: float) -> Program:
    """The program with zoneout's expected value, for evaluations (Krueger et al. 2017)."""
    if p == 0:
        return program
    builder = Builder(program.nodes)
    results = []
    for name, new in zip(program.states, program.results, strict=True):
        if name not in program.internal:
            share, rest, old = builder.constant(p), builder.constant(1 - p), builder.put(Node("state", name=name))
            new = _mixed(builder, share, rest, old, new)
        results.append(new)
    return program._replace(nodes=tuple(builder.nodes), results=tuple(results))


def _with_zoneout(program: Program) -> Program:
    """Each unit of a state keeps a share of its previous value (Krueger et al. 2017).

    Where the share is 0 or 1, the other value does not matter, even if it is infinite.
    """
    builder = Builder(program.nodes)
    zero, one = builder.constant(0.0), builder.constant(1.0)
    shares = builder.put(Node("given", count=len(program.states), name="zoneout"))
    results = []
    for s, (name, new) in enumerate(zip(program.states, program.results, strict=True)):
        share, old = builder.part(shares, s), builder.put(Node("state", name=name))
        rest = builder.apply("sub", one, share)
        mixed = _mixed(builder, share, rest, old, new)
        kept = builder.apply("where", builder.apply("greater", rest, zero), mixed, old)
        results.append(builder.apply("where", builder.apply("greater", share, zero), kept, new))
    return program._replace(nodes=tuple(builder.nodes), results=tuple(results))


def _mixed(builder: Builder, share: int, rest: int, old: int, new: int) -> int:
    """share ⊙ old + rest ⊙ new"""
    return builder.apply("add", builder.apply("mul", share, old), builder.apply("mul", rest, new))


def _with_mask(program: Program) -> Program:
    """State dropout (Gal & Ghahramani 2016) where a state enters the products of the loop."""
    nodes, kinds = program.nodes, when(program.nodes)

    def put(builder: Builder, place: int, node: Node) -> int:
        operand = nodes[place].args[0] if node.op == "product" else place
        if node.op == "product" and kinds[operand] == LOOP and nodes[operand].size == "H":
            masked = builder.apply("mul", node.args[0], builder.put(Node("given", name="mask")))
            node = replace(node, args=(masked,))
        return builder.put(node)

    return _rebuilt(program, put)


def _with_resets(program: Program) -> Program:
    """A step reads the state where `keep` is 1, else 0 or the learned initial state."""
    rows = rows_of_start(program)

    def put(builder: Builder, place: int, node: Node) -> int:
        new = builder.put(node)
        if node.op != "state":
            return new
        start = zero = builder.constant(0.0)
        if node.name in rows:
            start = builder.part(builder.put(Node("vector", count=len(rows), name=START)), rows[node.name])
        keep = builder.put(Node("given", size="", name="keep"))
        return builder.apply("where", builder.apply("greater", keep, zero, size="H"), new, start)

    return _rebuilt(program, put)


def _rebuilt(program: Program, put: Callable[[Builder, int, Node], int]) -> Program:
    """The program with each node put anew. put(builder, place, node): the new place of an old one's node."""
    builder, new = Builder(), list[int]()
    for place, node in enumerate(program.nodes):
        new.append(put(builder, place, replace(node, args=tuple(new[arg] for arg in node.args))))
    return program.rebuilt(builder.nodes, new)
