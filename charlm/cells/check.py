"""Checks a program, of a traced step or of a checkpoint, which may be hostile."""

from collections.abc import Iterable
from typing import Any

from charlm.cells.operations import LEAVES, OPERATIONS, OVER_UNITS
from charlm.cells.program import ARRAY, MATRIX_STARTS, MOST_SIZE, START, STATIC, Node, Parameter, Program, Size, when

MOST_NODES = 2000
"""Of a step; those of the built-in kinds have up to 1204."""
MOST_VECTORS = 4000
"""In all operations together."""
MOST_COUNT = 64
"""Most vectors side by side."""
MOST_STACK = 1024
MOST_STATES = 64
MOST_NAMES = 4000
"""Most parameters; and most values that people look at."""
LONGEST_NAME = 100
LARGEST = 3e38
"""The largest number, which float32 can hold."""


def is_name(text: str) -> bool:
    return len(text) <= LONGEST_NAME and text.isascii() and text.isidentifier() and not text.startswith("_")


def require(holds: bool, fault: str) -> None:
    if not holds:
        raise ValueError(f"found {fault}")


def check(program: Program, square: bool) -> None:
    """ValueError unless each node fits its arguments, parameter and the limits above. square: see `Cell.program`."""
    counts = {
        "operations": (len(program.nodes), MOST_NODES),
        "vectors in all operations": (sum(node.count for node in program.nodes), MOST_VECTORS),
        "states": (len(program.states), MOST_STATES),
        "parameters": (len(program.parameters), MOST_NAMES),
    }
    for what, (count, most) in counts.items():
        require(0 < count <= most, f"{count} {what}; allowed: 1 to {most}")
    names = len(program.gates) + len(program.shown)
    require(names <= MOST_NAMES, f"{names} names of gates and values; allowed: up to {MOST_NAMES}")
    declared = {parameter.name: parameter for parameter in program.parameters}
    require(len(declared) == len(program.parameters), "a parameter twice")
    for parameter in program.parameters:
        _check_parameter(parameter)
    for place, node in enumerate(program.nodes):
        require(all(0 <= arg < place for arg in node.args), f"operation {place}: an argument that comes after it")
        args = [program.nodes[arg] for arg in node.args]
        try:
            _check_node(node, args, program, declared.get(node.name), square)
        except ValueError as error:
            raise ValueError(f"operation {place}, {node.op[:40]}: {error}") from None
    _check_ends(program, square)
    unused = declared.keys() - {node.name for node in program.nodes if node.op in ("vector", "product")}
    require(not unused, f"parameters that nothing uses: {', '.join(sorted(unused))[:80]}")


def check_shape(parameter: Parameter) -> None:
    """ValueError unless the name and the sizes are allowed; call it before anything of these sizes is made."""
    name, gates, size, columns, stack = parameter[:5]
    require(type(name) is str and is_name(name), f"a parameter {name!r:.40}; allowed: a name of letters, digits and _")
    require(name != START, f"a parameter {name}; allowed: another name; learned initial states have this one")
    require(_is_within(gates, 1, MOST_COUNT), f"{name}: {gates!r:.40} gates; allowed: 1 to {MOST_COUNT}")
    require(_is_within(stack, 0, MOST_STACK), f"{name}: a stack of {stack!r:.40}; allowed: up to {MOST_STACK}")
    require(_fits(size) and size != "", f"{name}: a size {size!r:.40}; allowed: H, I, or 1 to {MOST_SIZE}")
    require(_fits(columns), f"{name}: {columns!r:.40} columns; allowed: H, I, or 1 to {MOST_SIZE}")


def _check_parameter(parameter: Parameter) -> None:
    check_shape(parameter)
    name, gates, _, columns, stack, starts, bound, _ = parameter
    is_matrix = columns != ""
    require(len(starts) == gates * max(stack, 1) or (is_matrix and not starts), f"{name}: {len(starts)} initial values")
    require(bound is None or 0 <= bound <= LARGEST, f"{name}: a bound {bound}")
    for start in starts:
        if isinstance(start, bytes) or (isinstance(start, str) and start.startswith(ARRAY)):
            continue
        if isinstance(start, str):
            allowed = f"finite numbers, {', '.join(MATRIX_STARTS)}" if is_matrix else "finite numbers"
            require(is_matrix and start in MATRIX_STARTS, f"{name}: an initial value {start!r:.40}; allowed: {allowed}")
        else:
            require(start is None or abs(start) <= LARGEST, f"{name}: an initial value that is not finite")


def _fits(size: Size) -> bool:
    return size in ("H", "I", "") if isinstance(size, str) else _is_within(size, 1, MOST_SIZE)


def _is_within(number: Any, least: int, most: int) -> bool:
    return type(number) is int and least <= number <= most


def _check_node(node: Node, args: list[Node], program: Program, parameter: Parameter | None, square: bool) -> None:
    op = node.op
    require(op in (*OPERATIONS, *LEAVES, *OVER_UNITS), "no such operation")
    arity = OPERATIONS[op].arity if op in OPERATIONS else int(op in OVER_UNITS)
    require(len(args) == arity, f"{len(args)} arguments; allowed: {arity}")
    require(1 <= node.count <= MOST_COUNT, f"{node.count} vectors; allowed: 1 to {MOST_COUNT}")
    require(abs(node.number) <= LARGEST, "a number that is not finite")
    require(str(node.number) != "-0.0", "the number −0; allowed: 0")
    require(_fits(node.size) and (node.size == "") == (op == "constant"), "no size")
    require(op == "product" or not node.transposed, "transposed")
    if op in ("input", "state", "constant"):
        size = {"input": "I", "state": "H", "constant": ""}[op]
        require((node.count, node.size) == (1, size), f"{node.count} × {node.size}; allowed: 1 × {size}")
        require(op != "state" or node.name in program.states, f"a state {node.name[:40]!r}")
    elif op in ("vector", "product"):
        require(parameter is not None and _uses(node, args, parameter), f"no such parameter {node.name[:40]!r}")
    elif op == "part":
        [whole] = args
        fits = (node.count, node.size) == (1, whole.size) and 0 <= node.index < whole.count
        require(fits and whole.count > 1, f"part {node.index} of {whole.count} × {whole.size}")
    elif op in ("normalize", "stop"):
        [arg] = args
        require((node.count, node.size) == (arg.count, arg.size), "another size than its argument")
        require(op == "stop" or (node.index in (0, 1) and node.number >= 0), "an epsilon below 0")
    else:
        counts = {arg.count for arg in args}
        require(node.count == max(counts) and counts <= {1, node.count}, "vectors that do not fit")
        require(node.size == joined([arg.size for arg in args], square), "sizes that do not fit")
    for position, arg in enumerate(args):
        decides = op == "part" or (op == "where" and position == 0)
        is_choice = _is_condition(program, arg)
        require(not is_choice or decides, "a comparison used as a number; allowed: where(comparison, a, b)")
        require(is_choice or op != "where" or position > 0, "no comparison to choose by")


def joined(sizes: Iterable[Size], square: bool) -> Size | None:
    """The size of a result of vectors of these sizes; None if they do not fit."""
    different = {*sizes} - {""}
    if square and different == {"H", "I"}:
        return "H"
    return None if len(different) > 1 else next(iter(different), "")


def _uses(node: Node, args: list[Node], parameter: Parameter) -> bool:
    """Whether a node uses a parameter as it is declared."""
    stack = max(parameter.stack, 1)
    if node.op == "vector":
        is_part = 0 <= node.index <= stack * parameter.gates - node.count
        return is_part and (parameter.size, parameter.columns) == (node.size, "")
    [operand] = args
    if not 0 <= node.index < stack or node.count != parameter.gates or operand.count != 1 or operand.size == "":
        return False
    if node.transposed:
        return node.count == 1 and (parameter.size, parameter.columns) == (operand.size, node.size)
    return (parameter.size, parameter.columns) == (node.size, operand.size)


def _is_condition(program: Program, node: Node) -> bool:
    """Whether a value is a comparison."""
    whole = program.nodes[node.args[0]] if node.op == "part" else node
    return whole.op == "greater"


def _check_ends(program: Program, square: bool) -> None:
    """Check the results, and the nodes that people look at."""
    require(len(program.results) == len(program.states), f"{len(program.results)} results")
    kinds = when(program.nodes)
    hidden = ("H", "I") if square else ("H",)
    looked_at = (*program.gates, *program.shown)
    for name in (*program.states, *(name for name, _ in looked_at)):
        require(is_name(name), f"a name {name[:40]!r}")
    texts = [f"the new state {name}" for name in program.states]
    states = [*zip(texts, program.results, strict=True)]
    for name, place in (*states, *looked_at):
        require(0 <= place < len(program.nodes), f"{name}: no operation {place}")
        node = program.nodes[place]
        shape = f"{node.count} × {node.size or 'constant'}"
        require(node.count == 1 and node.size in hidden, f"{name} with {shape}; allowed: 1 × H")
        require(not _is_condition(program, node), f"{name}: a comparison")
    for name, place in states:
        fault = f"{name}, which depends neither on x nor on a state; allowed: states that do"
        require(kinds[place] != STATIC, fault)
