"""Every operation of a program is declared once, in `charlm.cells.operations`, with its derivative.

Every target computes them all in `tests/export/odd.py`.
"""

import math
from importlib.resources import files

import pytest
import torch

from charlm.cells.on_tensors import OPERATORS
from charlm.cells.operations import OPERATIONS, Formula, in_code

POINTS = ((0.3, 0.7), (1.2, 0.4), (2.5, 2.0))


def value_of(op: str, *args: float) -> float:
    """The value of an operation in the reference loop."""
    tensors = [torch.tensor(arg, dtype=torch.float64) for arg in args]
    return float(OPERATORS[op](tensors[0] > 0, *tensors[1:]) if op == "where" else OPERATORS[op](*tensors))


def number(formula: Formula | float | None, letters: dict[str, float]) -> float:
    """A formula of a derivative for numbers."""
    if not isinstance(formula, Formula):
        return 0.0 if formula is None else formula
    if formula.op in letters:
        return letters[formula.op]
    args = [number(arg, letters) for arg in formula.args]
    return args[0] if formula.op == "in_forward" else value_of(formula.op, *args)


@pytest.mark.parametrize("op", OPERATIONS)
def test_derivative_is_that_of_the_value(op):
    operation = OPERATIONS[op]
    for point in POINTS:
        args = [1.0, *point][-operation.arity :]
        letters = dict(zip("ab", args, strict=False)) | {"y": value_of(op, *args), "d": 1.0}
        for k, formula in enumerate(operation.gradients):
            if op in ("greater", "stop") or (op == "where" and k == 0):
                assert formula is None
                continue
            above, below = ([*args[:k], args[k] + step, *args[k + 1 :]] for step in (1e-6, -1e-6))
            difference = (value_of(op, *above) - value_of(op, *below)) / 2e-6
            assert math.isclose(number(formula, letters), difference, rel_tol=1e-6, abs_tol=1e-8)


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


def test_the_page_has_them_all():
    assert (files("charlm.web") / "model" / "operations.js").read_text(encoding="utf-8") == operations_js()
