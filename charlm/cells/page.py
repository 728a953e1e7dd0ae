"""A program for the page that runs it: charlm/web/model/program.js."""

from typing import Any

from charlm.cells.operations import OPERATIONS, in_code
from charlm.cells.program import Program, needed, scalarized, when


def operations_js() -> str:
    """The text of charlm/web/model/operations.js."""
    lines = []
    for op, operation in OPERATIONS.items():
        letters = "abc"[: operation.arity]
        value = in_code("javascript", op, *(f"{letter}[u]" for letter in letters))
        loop = f"for (let u = 0; u < y.length; u++) y[u] = {value};"
        lines.append(f"  {op}: (y, {', '.join(letters)}) => {{ {loop} }},\n")
    return (
        "// The operations of a program, printed from charlm/cells/operations.py: each fills y, unit by unit.\n\n"
        f"export const UNIT_BY_UNIT = {{\n{''.join(lines)}}};\n"
    )


def program_json(program: Program, hidden: int, inputs: int) -> dict[str, Any]:
    """The program of a layer with H hidden units and I inputs, for the page that runs it (charlm/web/model/program.js).

    Each node has the `length` of its value, its `stage` (STATIC, WINDOW or LOOP), and for `vector` and `part` the
    `start` in the parameter or in args[0]. Only vectors, products and their parts have several vectors side by side.
    """
    program = scalarized(program)
    nodes, stages = program.nodes, when(program.nodes)
    places = needed(nodes, (*program.results, *(place for _, place in (*program.shown, *program.gates))))
    new = {place: number for number, place in enumerate(places)}
    sizes = {"H": hidden, "I": inputs}
    units = [node.size if isinstance(node.size, int) else sizes.get(node.size, 0) for node in nodes]
    lengths = [node.count * each for node, each in zip(nodes, units, strict=True)]
    listed = [
        {
            "op": nodes[place].op,
            "args": [new[arg] for arg in nodes[place].args],
            "length": lengths[place] or max(lengths),  # a constant is as long as any value
            "stage": stages[place],
            "name": nodes[place].name,
            "index": nodes[place].index,
            "start": nodes[place].index * units[place],
            "number": nodes[place].number,
        }
        for place in places
    ]
    return {
        "nodes": listed,
        "states": [
            {"name": name, "result": new[place], "internal": name in program.internal}
            for name, place in zip(program.states, program.results, strict=True)
        ],
        "shown": {name: new[place] for name, place in program.shown}
        | {f"gate {name}": new[place] for name, place in program.gates},
    }
