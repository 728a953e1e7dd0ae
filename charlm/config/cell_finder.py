"""Cells that are not built in: what a kind with the path of a Python file means, and who may run that file."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from charlm.cells import Cell
from charlm.cells.stored import StoredCell, stored_cell
from charlm.config.schema import ModelConfig
from charlm.errors import CellError

CellFinder = Callable[[str, Path, Mapping[str, Any]], type[Cell]]
"""(kind, folder in which a relative path starts, section `model.cell`) → the class of the cell. CellError if none."""


def is_in_file(kind: object) -> bool:
    """Whether a kind names a Python file, and perhaps a class in it."""
    return isinstance(kind, str) and re.search(r"\.py(:|$)", kind) is not None


def from_file(kind: str, folder: Path, section: Mapping[str, Any]) -> type[Cell]:
    """The class in the file, which is run."""
    from charlm.cells.file import load_cell

    return load_cell(kind, folder)


def as_data(kind: str, folder: Path, section: Mapping[str, Any]) -> type[Cell]:
    """A class that has the options of the section and no equations, to read a config without running a file."""
    try:
        return stored_cell(section)
    except ValueError as error:
        raise CellError(str(error)) from None


def of_run(cell: Cell) -> CellFinder:
    """The class of a run's own cell; other files are refused, and none is run."""

    def find(kind: str, folder: Path, section: Mapping[str, Any]) -> type[Cell]:
        same_name = Path(kind).name == Path(cell.kind).name  # the file may have moved with the config
        if is_in_file(cell.kind) and same_name:
            return type(cell)
        raise CellError(f"found {kind!r}; the run has {cell.kind!r}; allowed: the same")

    return find


def check_traced(model: ModelConfig) -> None:
    """CellError unless the step of a cell that is not built in becomes a program in layers of this model."""
    cell = model.cell
    if isinstance(cell, StoredCell) or not is_in_file(cell.kind):
        return
    cell.program(square=True)
    if model.embedding not in (0, cell.hidden):  # one-hot inputs are as many as the text has characters
        try:
            cell.program(square=False)
        except CellError as error:
            raise CellError(f"{error}; or as many inputs as hidden units: set model.embedding to the same") from None
