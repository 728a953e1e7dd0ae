"""Every operation of a program is declared once: `charlm.cells.operations`. Each target has it."""

import math
import re
from importlib.resources import files
from typing import Any

import pytest
import torch
from torch import nn

from charlm.cells.cpp import cpp
from charlm.cells.derivative import passes_of
from charlm.cells.equations import derivative, equations
from charlm.cells.on_tensors import OPERATORS
from charlm.cells.operations import OPERATIONS, Formula, in_code
from charlm.cells.program import Node, Parameter, Program
from charlm.cells.triton import Options, kernels
from charlm.export.html_model import program_json
from charlm.export.onnx_graph import build_model
from charlm.model import CharLM
from tests.cells.forged import layers_of_program

POINTS = ((0.3, 0.7), (1.2, 0.4), (2.5, 2.0))


def program_of(op: str) -> Program:
    """h after a step: the operation of W x and of exp(h), or a choice between them."""
    nodes = [Node("input", size="I"), Node("state", name="h"), Node("product", (0,), name="w"), Node("exp", (1,))]
    if OPERATIONS[op].arity == 3 or op == "greater":
        nodes += [Node("greater", (2, 3)), Node("where", (4, 3, 2))]
    else:
        nodes.append(Node(op, (3, 2)[: OPERATIONS[op].arity]))
    return Program(tuple(nodes), ("h",), (len(nodes) - 1,), (Parameter("w", columns="I"),))


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
def test_derivative_is_that_of_the_value(op: str) -> None:
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


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_target_has_it(op: str) -> None:
    program, operation = program_of(op), OPERATIONS[op]
    derived = passes_of(program)
    source = kernels(derived, Options(False, False, False, False)).source
    for target, text in (("cpp", cpp([derived])), ("triton", source)):
        pattern = re.escape(in_code(target, op, *"@" * operation.arity)).replace("@", r"[^\n]+")
        assert re.search(pattern, text), target
    assert all(equations(program))
    assert all(derivative(program))
    assert op in {node["op"] for node in program_json(program, 4, 3)["nodes"]}
    network = CharLM(5, 3, layers_of_program(program, square=False).float())
    assert f'op_type: "{operation.onnx or op.capitalize()}"' in str(build_model(network))
    torch_function: Any = getattr(torch, operation.torch or op, None) or getattr(nn.functional, op)
    assert callable(torch_function)


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


def test_the_page_has_them_all() -> None:
    assert (files("charlm.web") / "model" / "operations.js").read_text(encoding="utf-8") == operations_js()
