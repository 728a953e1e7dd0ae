"""A cell as data: nothing is lost, and damaged or hostile data is refused or computes something of the right shape."""

import ast
import json
from random import Random
from typing import Any, ClassVar

import pytest
import torch

from charlm.cells import Cell
from charlm.cells.cpp import cpp
from charlm.cells.derivative import derive
from charlm.cells.equations import equations
from charlm.cells.program import Program, without_arrays
from charlm.cells.split import split
from charlm.cells.state_options import ALL, PLAIN, with_options
from charlm.cells.stored import StoredCell, as_json
from charlm.cells.triton import kernels
from charlm.errors import CellError
from charlm.export.html import program_json
from charlm.layers import RecurrentLayers
from tests.cells.measure import CASES
from tests.export.odd import Odd

KIND = "/somewhere/mine.py:Mine"
DAMAGES = 800


class Own(Odd):
    """A cell with operations that no built-in kind has, and with options."""

    initial: ClassVar = ("rate",)
    rate: float = 0.5


class Adds(Cell):
    """A cell whose layers need as many inputs as hidden units."""

    sizes: tuple[int, ...] = (3, 5)

    def step(self, p: Any, x: Any, h: Any) -> Any:
        return x + h * p.vector("a", start=0.5)


CELLS: list[Cell] = [*(case.start(1, 5).cell for case in CASES), Own(hidden=5), Adds(hidden=5)]


def restored(section: dict[str, Any], stored: str) -> StoredCell:
    return StoredCell.model_validate(section).with_programs(stored)


def section_of(cell: Cell) -> dict[str, Any]:
    return cell.model_dump(mode="json") | {"kind": KIND}


@pytest.mark.parametrize("cell", CELLS, ids=repr)
def test_nothing_is_lost(cell):
    section, stored = section_of(cell), as_json(cell)
    again = restored(section, stored)
    assert again.model_dump(mode="json") == section
    assert (again.states, again.internal, again.initial) == (cell.states, cell.internal, cell.initial)
    assert again.name == "Mine"
    for program, stored_program in zip(cell.programs(), again.programs(), strict=True):
        parameters = [one._replace(starts=without_arrays(one.starts)) for one in program.parameters] if program else []
        assert stored_program == (program and program._replace(parameters=tuple(parameters)))
    assert as_json(again) == stored


def accept_or_refuse(section: dict[str, Any], stored: str) -> bool:
    """Read JSON that may be damaged. Of what is accepted, layers compute states, and all else can be derived."""
    try:
        cell = restored(section, stored)
    except ValueError:
        return False
    for inputs, square in ((3, False), (cell.hidden, True)):
        try:
            program = cell.program(square)
        except CellError:
            assert not square
            continue
        if sum(torch.Size(parameter.shape(cell.hidden, inputs)).numel() for parameter in program.parameters) > 10**5:
            continue
        layers = RecurrentLayers(cell, inputs)
        with torch.no_grad():
            y_TBH, state = layers.forward_reference(torch.randn(2, 2, inputs))
        assert y_TBH.shape == (2, 2, cell.hidden)
        assert all(tensor.shape == (1, 2, cell.hidden) for tensor in state)
        derive_everything(program, inputs, cell.hidden)
    return True


def derive_everything(program: Program, inputs: int, hidden: int) -> None:
    """Kernels, equations, and what a page gets."""
    for options, bf16 in ((PLAIN, False), (ALL, True)):
        passes = derive(split(with_options(program, options)))
        assert "struct Cell0" in cpp([passes])
        ast.parse(kernels(passes, bf16).source)
    assert all(" = " in line for line in equations(program))
    json.dumps(program_json(program, hidden, inputs), allow_nan=False)


ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 64, 65, 1024, 1025, 2**20, 2**20 + 1, 2**63, 10**40, 0.5, -0.0, 1e-300, 1e308,
    float("inf"), float("nan"), "", "H", "I", "h", "x", "add", "where", "greater", "product", "vector", "part", "state",
    "given",     "constant", "input", "normalize", "stop", "exp", "softplus", "__class__", "a b", "é", "\0",
    [], [0], [1, 2], {}, {"H": 1},
]  # fmt: skip


def damaged(text: str, random: Random) -> str:
    """The JSON with up to three values changed, removed, doubled or swapped, or with a character changed."""
    if random.random() < 0.05:
        at = random.randrange(len(text))
        return text[:at] + random.choice('0123456789"[]{},:-. H') + text[at + random.randrange(2) :]
    value = json.loads(text)
    for _ in range(random.randint(1, 3)):
        places = list(_places(value))
        container, key = random.choice(places)
        how = random.random()
        if how < 0.3:
            container[key] = random.choice(ODD)
        elif how < 0.6 and type(container[key]) is int:
            container[key] += random.choice((-3, -2, -1, 1, 2, 3))
        elif how < 0.8:
            other, other_key = random.choice(places)
            container[key] = json.loads(json.dumps(other[other_key]))
        elif how < 0.9 and isinstance(container, list):
            container.insert(key, json.loads(json.dumps(container[key])))
        else:
            del container[key]
        if not value:
            break
    return json.dumps(value)


def _places(value: Any) -> Any:
    """Every value inside of another one, as (container, key)."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], list | dict):
            yield from _places(value[key])


def test_damaged_programs_are_refused_or_compute():
    random = Random(1)
    seeds = [(section_of(cell), as_json(cell)) for cell in CELLS]
    outcomes = []
    for n in range(DAMAGES):
        section, stored = seeds[n % len(seeds)]
        outcomes.append(accept_or_refuse(section, damaged(stored, random)))
    assert 0.02 < sum(outcomes) / len(outcomes) < 0.5  # both happen


# Where in the square program of Own something else stands.
HOSTILE: list[tuple[tuple[Any, ...], Any]] = [
    (("nodes", -1, 0), "import"),
    (("nodes", -1, 1), [9999, 0]),  # an argument that comes after it
    (("nodes", -1, 1), []),
    (("nodes", 4, 3), 2**30),  # a size
    (("nodes", 4, 4), "os.system"),  # a parameter
    (("nodes", -1, 6), float("nan")),
    (("nodes",), [["input", [], 1, "I", "", 0, 0.0, False]] * 2001),
    (("parameters", 0, 4), 10**9),  # a stack
    (("parameters", 1, 0), "q"),  # a parameter twice
    (("parameters", slice(0, 0)), [["w", 1, "H", "H", 0, [], None]]),  # one that nothing uses
    (("results",), [0]),
]


@pytest.mark.parametrize(("place", "value"), HOSTILE, ids=lambda part: str(part)[:30])
def test_a_hostile_program_is_refused_in_one_line(place, value):
    cell = Own(hidden=5)
    raw = json.loads(as_json(cell))
    container = raw["programs"][1]
    for key in place[:-1]:
        container = container[key]
    container[place[-1]] = value
    with pytest.raises(ValueError, match=r"found [^\n]+$"):
        restored(section_of(cell), json.dumps(raw))


@pytest.mark.parametrize(
    "wrong", [{"kind": 3}, {"kind": "mine.py:lstm"}, {"kind": 'x.py:A"""'}, {"step": 1}, {"__init__": 1}, {"a b": 1}]
)
def test_a_kind_or_an_option_that_could_mean_code_is_refused(wrong):
    cell = Own(hidden=5)
    with pytest.raises(ValueError, match=r"."):
        restored(section_of(cell) | wrong, as_json(cell))
