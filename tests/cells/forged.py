"""Random programs that pass the check, as a stranger's checkpoint may hold them, and every path that one can take."""

import ast
import json
from contextlib import suppress
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from charlm.cells import Cell
from charlm.cells.cell import trace
from charlm.cells.check import check
from charlm.cells.cpp import cpp
from charlm.cells.derivative import derive
from charlm.cells.equations import derivative, equations
from charlm.cells.operations import OPERATIONS
from charlm.cells.program import Program, needed, scalarized
from charlm.cells.split import split
from charlm.cells.stored import as_json, restored
from charlm.cells.triton import Options, kernels
from charlm.export.html_model import program_json
from charlm.layers import RecurrentLayers, RecurrentState
from charlm.layers.reference import TensorProgram
from tests.cells.measure import assert_equal_runs, by_kernel, by_program, run
from tests.cells.programs import NAMES, random_cell

HIDDEN, INPUTS = 4, 3
NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1e-30, 1e-300, -60.0, -61.0, 88.0, -700.0, 3e38, -3e38)
CHANGES = 60
LARGEST = 1e9


def forged(seed: int) -> tuple[Program, bool]:
    """A program that passes the check but that no step gives, and whether it is for layers with I = H."""
    random, square = Random(seed), bool(seed % 2)
    program = trace(random_cell(random, HIDDEN, NAMES, most=(2, 6, 10)[seed % 3]), square)
    for _ in range(CHANGES):
        changed = _changed(program, random)
        with suppress(ValueError):
            check(changed, square)
            program = changed
    return program, square


def _changed(program: Program, random: Random) -> Program:
    """The program with another operation, operand, number or result in one place."""
    nodes, results = list(program.nodes), list(program.results)
    place = random.randrange(len(nodes))
    node = nodes[place]
    if random.random() < 0.05:
        results[random.randrange(len(results))] = place
    elif node.op == "constant":
        nodes[place] = replace(node, number=random.choice(NUMBERS))
    elif node.op in OPERATIONS and random.random() < 0.4:
        alike = [name for name, one in OPERATIONS.items() if one.arity == len(node.args)]
        nodes[place] = replace(node, op=random.choice(alike))
    elif node.args:
        constants = [k for k in range(place) if nodes[k].op == "constant"]
        args = list(node.args)
        choices = constants if constants and random.random() < 0.3 else range(place)
        args[random.randrange(len(args))] = random.choice(choices)
        nodes[place] = replace(node, args=tuple(args))
    return program._replace(nodes=tuple(nodes), results=tuple(results))


def layers_of_program(program: Program, square: bool) -> RecurrentLayers:
    """A layer in float64 of the cell that a checkpoint with this program holds."""
    programs = None if square else program, program
    attributes = {"states": program.states, "internal": program.internal, "programs": lambda self: programs}
    cell = type("Forged", (Cell,), attributes)(hidden=HIDDEN)
    section = {"kind": "/somewhere/forged.py:Forged", "hidden": HIDDEN}
    torch.manual_seed(0)
    return RecurrentLayers(restored(section, as_json(cell)), HIDDEN if square else INPUTS).double()


def inputs_of(layers: RecurrentLayers) -> tuple[Tensor, RecurrentState]:
    """Random ones, some of them 0."""
    x = torch.randn(3, 2, layers.input_size, dtype=torch.float64)
    x[1] = 0
    state = tuple(torch.randn(1, 2, HIDDEN, dtype=torch.float64).tanh() for _ in layers.state_names)
    state[0][0, 0] = 0
    return x, state


def assert_every_path(program: Program, square: bool) -> None:
    """Derive all that charlm derives of a program; what computes gives the numbers of the reference loop."""
    layers = layers_of_program(program, square)
    assert layers.program(0) == program
    x, state = inputs_of(layers)
    y, last = layers.forward_reference(x, state)
    for form in (program, scalarized(program)):
        found_y, found_last = by_program(layers, form)(x, state)
        torch.testing.assert_close((found_y, *found_last), (y, *last), rtol=1e-9, atol=1e-9, equal_nan=True)
    derived = derive(split(program))
    assert "struct Cell0" in cpp([derived])
    for options in (Options(False, False, False, False), Options(True, True, True, True)):
        ast.parse(kernels(derived, options).source)
    for lines in (equations(program), derivative(program)):
        assert all(" = " in line for line in lines)
    json.dumps(program_json(program, HIDDEN, layers.input_size), allow_nan=False)


@torch.no_grad()
def is_moderate(layers: RecurrentLayers, x: Tensor, state: RecurrentState) -> bool:
    """Whether no value in a window is NaN, or so large that differences are rounding."""
    program, states = layers.program(0), tuple(tensor[0] for tensor in state)
    places = needed(program.nodes, program.results)
    step = TensorProgram(program, (*program.results, *places), layers.layer_parameters(0))
    for x_BI in x:
        values = step({"input": x_BI, "state": dict(zip(program.states, states, strict=True))})
        states = tuple(values[: len(states)])
        if not all(torch.as_tensor(value).double().abs().max() < LARGEST for value in values):
            return False
    return True


def compare_kernel(layers: RecurrentLayers) -> None:
    """Run a program of `layers_of_program` in its kernel; it gives the numbers of the reference where it can."""
    x, state = inputs_of(layers)
    is_compared = is_moderate(layers, x, state)
    if layers.forward_reference(x, state)[0].requires_grad:
        layers = layers.float()
        x, state = x.float(), tuple(tensor.float() for tensor in state)
        found = run(by_kernel(layers), layers, x, state)
        expected = run(layers.forward_reference, layers, x, state)
        if is_compared and all(tensor.isfinite().all() for tensor in expected.values()):
            assert_equal_runs(found, expected, tolerance=1e-3)
