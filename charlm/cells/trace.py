"""Runs a cell's `step` on symbols, which gives its program."""

import inspect
from typing import Any

from pydantic import ValidationError

from charlm.cells.check import check
from charlm.cells.program import Node, Program
from charlm.cells.step import Parameters
from charlm.cells.symbols import ALLOWED, Value
from charlm.errors import CellError


def trace(cell: Any, square: bool) -> Program:
    """The program of the step of a `Cell`. It is traced anew in each call, because it may read globals that change.

    square: whether a layer has as many inputs as hidden units, so that both kinds of vectors can be added.
    CellError, which names the source line, for a step that no program can express.
    """
    program = _traced(cell, square)
    if _traced(cell, square) != program:
        raise CellError(
            f"{Parameters(cell, square).where()}: step computes something else when it is called again; allowed: the "
            "same in every call, so no random numbers, and nothing kept from an earlier call"
        )
    return program


def _traced(cell: Any, square: bool) -> Program:
    tracing = Parameters(cell, square)
    _check_signature(tracing)
    x = Value(tracing, tracing.builder.put(Node("input", size="I")))
    states = [Value(tracing, tracing.builder.put(Node("state", name=name))) for name in cell.states]
    try:
        results = cell.step(tracing, x, *states)
    except CellError:
        raise
    except (Exception, SystemExit) as error:
        raise CellError(f"{tracing.where(error)}: {_explained(error)}") from error
    tracing.returned = True
    if isinstance(results, list):
        tracing.fail("step returns a list; allowed: a tuple, or one value")
    results = results if isinstance(results, tuple) else (results,)
    if len(results) != len(cell.states):
        states = f"{len(cell.states)}: {', '.join(cell.states)}"
        tracing.fail(f"the number of values that step returns is {len(results)}; allowed: {states}")
    if not tracing.declared:
        tracing.fail("step uses no parameters; allowed: at least one")
    places = [tracing.value(result).place for result in results]
    matrices = [parameter for parameter in tracing.declared.values() if parameter.columns != ""]
    vectors = [parameter for parameter in tracing.declared.values() if parameter.columns == ""]
    program = Program(
        tuple(tracing.builder.nodes), cell.states, tuple(places), (*matrices, *vectors), cell.internal,
        tuple(tracing.gates.items()), tuple(tracing.shown.items()),
    )  # fmt: skip
    try:
        check(program, square)
    except ValueError as error:
        tracing.fail(str(error))
    return program


def _explained(error: BaseException) -> str:
    """An exception of a step, in words."""
    if isinstance(error, ValidationError):
        return (
            "an attribute of the cell is set, which keeps nothing; what a step needs of the past is one of its states"
        )
    return f"{type(error).__name__}: {' '.join(str(error).split())}; {ALLOWED}"


def _check_signature(tracing: Parameters) -> None:
    """CellError unless the cell has states, and its step takes them."""
    cell = tracing.cell
    names, internal, name = cell.states, cell.internal, type(cell).__name__
    if not isinstance(names, tuple) or len({*names}) != len(names) or not {*internal} < {*names}:
        raise CellError(
            f"{name}: found states {names!r}, internal {internal!r}; allowed: a tuple of different names, as in "
            'states: ClassVar = ("h", "c"), and some of them, but not the first, as internal'
        )
    signature = ", ".join(("self", "p", "x", *names))
    if type(cell).step.__module__ == "charlm.cells.cell":  # that of `Cell`
        raise CellError(f"{name}: found no step; allowed: def step({signature})")
    try:
        inspect.signature(cell.step).bind(tracing, None, *names)
    except TypeError as error:
        tracing.fail(f"{error}; allowed: def step({signature}), with one argument for each of the states")
