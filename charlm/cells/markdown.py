"""A cell as a page of Markdown: its states, options, parameters, equations and their derivative."""

import inspect
import json
from collections import Counter

from charlm.cells.cell import Cell
from charlm.cells.equations import derivative, equations, latex, notes
from charlm.cells.lines import Notation
from charlm.cells.program import Parameter, Program
from charlm.errors import CellError


def general_program(cell: Cell) -> tuple[Program, str]:
    """The program for layers of any number of inputs, and ""; else that of square layers, and a note that says so."""
    try:
        return cell.program(square=False), ""
    except CellError:
        return cell.program(square=True), "for layers with as many inputs as hidden units only"


def explanation(cell: Cell) -> list[str]:
    """What the docstring of the cell's class says below its first paragraph, a line for each other one."""
    paragraphs = inspect.cleandoc(type(cell).__doc__ or "").split("\n\n")[1:]
    return [" ".join(paragraph.split()) for paragraph in paragraphs]


def shape(parameter: Parameter) -> str:
    """The shape of a parameter, such as [4·H, I]."""
    rows = f"{parameter.gates}·{parameter.size}" if parameter.gates > 1 else f"{parameter.size}"
    sizes = [*([parameter.stack] if parameter.stack else []), rows, parameter.columns]
    return f"[{', '.join(str(size) for size in sizes if size != '')}]"


def markdown(cell: Cell) -> str:
    """What the step says, for a page about the cell."""
    program, note = general_program(cell)
    states = [f"`{name}`" for name in cell.states]
    listed = f"{', '.join(states[:-1])} and {states[-1]}" if len(states) > 1 else states[0]
    lines = ["## Parameters", ""]
    carried = f"states {listed}" if len(states) > 1 else f"state {listed}"
    lines += [
        f"A layer has I inputs and H units. From step to step it carries the {carried}; its output is {states[0]}."
    ]
    lines += [f"This is the step {note}."] if note else []
    lines += ["", "| parameter | shape | initial value |", "|---|---|---|"]
    lines += [f"| `{each.name}` | {shape(each)} | {_start(each)} |" for each in program.parameters]
    lines += ["", f"A layer has {_count(program)} parameters. U(±a) is uniform between −a and a."]
    if any("," in _start(each) for each in program.parameters):
        lines += ["Several initial values are for H numbers each, in turn."]
    lines += [""]
    fields = {name: type(cell).model_fields[name] for name in cell.options()}
    if fields:
        lines += ["| option | default | meaning |", "|---|---|---|"]
        for name, field in fields.items():
            meaning = " ".join((field.description or "").split())  # a row is one line
            lines += [f"| `{name}` | {json.dumps(field.default, ensure_ascii=False)} | {meaning} |"]
        lines += [""]
    forward, backward = equations(program), derivative(program)
    lines += ["## Equations", "", _notation(forward), "", f"```math\n{latex(program)}\n```", ""]
    unnamed = ", and δ₁ that of a value without a name" if "δ" in str(backward) else ""
    lines += [
        f"As text, and below it the derivative: dv is the gradient of the loss with respect to v{unnamed}. W and b in"
    ]
    lines += ["a = W v + b get the sums of da vᵀ and da over steps and streams, any other w that of dw.", ""]
    explained = [*explanation(cell), *notes(forward + backward)]
    lines += [line for each in explained for line in (each, "")]
    lines += ["```text", *forward, "", *backward, "```"]
    return "\n".join(lines) + "\n"


def _notation(forward: list[str]) -> str:
    """What the symbols in the equations mean."""
    text = "\n".join(forward)
    sigmoid = "σ is the logistic sigmoid; " if "σ" in text else ""
    parts = "; v[k] or v⁽ᵏ⁾ is the k-th of the vectors or matrices in v" if "[" in text else ""
    return f"{sigmoid}⊙ multiplies unit by unit{parts}."


def _start(parameter: Parameter) -> str:
    """How a parameter starts, one value for each gate where they differ."""
    drawn = "U(±1/√H)" if parameter.bound is None else f"U(±{Notation().number(parameter.bound)})"
    starts = []
    for start in parameter.starts or (None,):
        text = f"{start:g}" if isinstance(start, float) else start
        starts.append(text or drawn)
    if len(set(starts)) == 1:
        return starts[0]
    rows = starts[: parameter.gates]
    return ", ".join(rows if starts == rows * max(parameter.stack, 1) else starts)


def _count(program: Program) -> str:
    """The number of parameters as a sum, such as 4·H·H + 4·H·I + 8·H."""
    terms: Counter[str] = Counter()
    for each in program.parameters:
        number, letters = each.gates * max(each.stack, 1), ""
        for size in (each.size, each.columns):
            if isinstance(size, int):
                number *= size
            else:
                letters += size
        terms["·".join(sorted(letters)).replace("H·H", "H²")] += number
    order = sorted(terms, key=lambda term: (-len(term.replace("²", "··")), term))
    return " + ".join(f"{terms[term]:,}·{term}" if terms[term] > 1 else term for term in order)
