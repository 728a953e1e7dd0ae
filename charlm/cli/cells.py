"""charlm cells: list, show, check."""

import inspect
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from charlm.cli import usage
from charlm.cli.common import print_table
from charlm.errors import CellError
from charlm.system.formatting import one_line

if TYPE_CHECKING:
    from charlm.cells import Cell

app = usage.command_group("List and show kinds of cells, and check one of your own.", "charlm cells show lstm")


@app.command("list")
def list_cells() -> None:
    """List the kinds that come with charlm: name, states, and what each is.

    \b
    Example:
      charlm cells list
    """
    from charlm.cells import CELLS

    states = {kind: ", ".join(cell.states) for kind, cell in CELLS.items()}
    width = max(map(len, states.values()))
    print_table({kind: f"{states[kind]:<{width}}  {_summary(cell)}" for kind, cell in CELLS.items()})


@app.command()
def show(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="A built-in kind, or FILE.py:CLASS for one of your own.")],
    overrides: usage.Overrides = None,
) -> None:
    """Show what a cell computes: its options, its parameters and their shapes, its equations, and their derivative.

    H: hidden units; I: inputs of a layer; a[k]: the k-th vector in a; dv: the gradient of the loss with respect to v.
    The derivative leads from dhₜ, after the step, to dhₜ₋₁, before it, and to dxₜ.

    \b
    Example:
      charlm cells show lstm --set model.cell.layer_norm=true
    """
    from charlm.cells import CELLS
    from charlm.cells.file import load_cell
    from charlm.config import parse_config

    kind = kind.lower() if kind.lower() in CELLS else kind
    raw = {"model": {"cell": {"kind": kind}}}
    _print(parse_config(raw, "KIND", usage.as_settings(overrides), load_cell).model.cell)


@app.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A Python file with cells, or FILE.py:CLASS for one.")],
) -> None:
    """Check the cells of a Python file: trace each step, print its equations, and compare all ways to compute it.

    Every backend must give the results and gradients of the reference loop: in float64 up to rounding, in float32
    with at most four times its error. Runs the file.

    \b
    Example:
      charlm cells check leaky.py
    """
    from charlm.cells.cell import is_in_file
    from charlm.cells.file import cells_of_file, load_cell
    from charlm.layers.check_backends import HIDDEN, agreements

    if not is_in_file(file):
        raise CellError(f"{file}: found no path of a Python file; allowed: for example leaky.py, or leaky.py:Leaky")
    own = cells_of_file(Path(file)) if file.endswith(".py") else [load_cell(file)]
    for each in own:
        cell = each.with_options({"kind": each.kind, "hidden": HIDDEN})
        if each is not own[0]:
            typer.echo()
        _print(cell)
        typer.echo()
        rows = {}
        try:
            rows.update(agreements(cell))
        finally:
            print_table(rows)


def _summary(cell: "type[Cell]") -> str:
    """What a kind is, in one line; of a class in a file the first line of its docstring."""
    from charlm.cells import CELLS

    kind = cell.model_fields["kind"]
    text = kind.description or ""
    if CELLS.get(kind.default) is not cell:
        text = inspect.cleandoc(cell.__doc__ or "").partition("\n")[0]
    return one_line(text).rstrip(".")


def _print(cell: "Cell") -> None:
    from charlm.cells.equations import derivative, equations, notes

    general, square = cell.programs()
    program = general or square
    note = "" if general else "  (for layers with as many inputs as hidden units only)"
    options = {"hidden": cell.hidden, **cell.options()}
    shapes = [f"{one.name} {one.shape_text}{' fixed' if one.fixed else ''}" for one in program.parameters]
    products = Counter((node.name, node.index) for node in program.nodes if node.op == "product")
    shared = [f"{name} multiplies {count} vectors" for (name, _), count in products.items() if count > 1]
    rows = {
        cell.name: (_summary(type(cell)) or "without a docstring") + note,
        "states": ", ".join(cell.states),
        "options": ", ".join(f"{name} {json.dumps(value)}" for name, value in options.items()),
        "parameters": ", ".join(shapes),
    }
    if shared:
        rows["shared"] = ", ".join(shared)
    print_table(rows)
    forward, backward = equations(program), derivative(program)
    paragraphs = inspect.cleandoc(type(cell).__doc__ or "").split("\n\n")[1:]
    explained = [" ".join(paragraph.split()) for paragraph in paragraphs]
    for lines in filter(None, (forward, backward, [*explained, *notes(forward + backward)])):
        typer.echo("\n" + "\n".join(lines))
