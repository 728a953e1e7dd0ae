"""A cell in a Python file outside of charlm, whose kind is `path/to/file.py:Class`. Loading one runs the file."""

import difflib
import functools
import hashlib
import inspect
import os
import sys
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import PydanticUserError, ValidationError
from pydantic_core import PydanticUndefined

from charlm.cells import CELLS, Cell
from charlm.cells.cell import is_in_file
from charlm.cells.check import LARGEST, is_name
from charlm.cells.stored import StoredCell
from charlm.errors import CellError
from charlm.system.console import say
from charlm.system.files import read_file

MOST_BYTES = 1_000_000
_ALLOWED = "allowed: a Python file with a subclass of charlm.cells.Cell, as ./leaky.py:Leaky"


def load_cell(kind: str, folder: Path) -> Cell:
    """A cell of the class that a kind names, with default options and the absolute path in its own kind.

    A relative path starts in `folder`.

    A file is run once, and again after it has changed; a line says so. CellError for whatever is wrong with it.
    """
    written, is_named, name = kind.rpartition(".py:")
    path = absolute(folder, f"{written}.py" if is_named else kind)
    if registered_cell := _REGISTERED.get(f"{path}:{name}"):
        return registered_cell
    module = _module(path, _source(path))
    return _cell(path, module, name if is_named and name else _only_cell(path, module))


def cells_of_file(path: Path) -> list[Cell]:
    """A cell of each class that a file defines, in its order, as `load_cell` gives it; CellError if there is none."""
    path = absolute(Path.cwd(), str(path))
    module = _module(path, _source(path))
    names = _own_cells(module) or [_only_cell(path, module)]
    return [_cell(path, module, name) for name in names]


_REGISTERED: dict[str, Cell] = {}
"""Cells passed to `registered`, by their kind."""


@contextmanager
def registered(cell: Any) -> Iterator[dict[str, Any]]:
    """The settings that choose a cell class or a cell object passed from Python; they hold during the block.

    TypeError for anything else except None.
    """
    if cell is None:
        yield {}
        return
    own_class = type(cell) if isinstance(cell, Cell) else cell
    if not (inspect.isclass(own_class) and issubclass(own_class, Cell)) or own_class is Cell:
        raise TypeError(f"cell: found {cell!r}; allowed: a subclass of charlm.cells.Cell, or an object of one")
    options = cell.model_dump(exclude_unset=True, exclude={"kind"}) if isinstance(cell, Cell) else {}
    kind = own_class.model_fields["kind"].default
    if CELLS.get(kind) is own_class:
        yield _as_settings(kind, options)
        return
    if not isinstance(cell, Cell) or not is_in_file(cell.kind):
        _check_class("cell", own_class)
        file = getattr(sys.modules.get(own_class.__module__), "__file__", None) or ""
        if not is_in_file(file):  # as "<stdin>", or a script without an ending
            file = f"{own_class.__module__}.py"
        cell = own_class.model_construct(kind=f"{absolute(Path.cwd(), file)}:{own_class.__name__}")
    _REGISTERED[cell.kind] = cell
    try:
        yield _as_settings(cell.kind, options)
    finally:
        _REGISTERED.pop(cell.kind, None)


def _as_settings(kind: str, options: dict[str, Any]) -> dict[str, Any]:
    return {f"model.cell.{name}": value for name, value in {"kind": kind, **options}.items()}


def absolute(folder: Path, path: str) -> Path:
    """A path that starts in `folder`, without dots and ~."""
    return Path(os.path.abspath(folder / os.path.expanduser(path)))  # noqa: PTH100, PTH111 (neither resolves links)


def _source(path: Path) -> bytes:
    try:
        return read_file(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else getattr(error, "strerror", None) or error
        raise CellError(f"{path}: {reason}; {_ALLOWED}") from None


@functools.lru_cache(maxsize=32)
def _module(path: Path, source: bytes) -> types.ModuleType:
    """Run a file."""
    say("cell", f"{path}: runs this file, for the cells in it")
    module = types.ModuleType(f"charlm_cell_{hashlib.sha256(bytes(path) + source).hexdigest()[:16]}")
    module.__file__ = str(path)
    # Pydantic finds types, and inspect finds the file, by way of the module.
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) else next(reversed(lines), None)
        text = error.msg if isinstance(error, SyntaxError) else str(error).partition("\n")[0]
        at = f", line {line}" if line else ""
        if isinstance(error, PydanticUserError):
            text = f"{text.partition('. ')[0]}; allowed: options with a type, as in scale: float = 3.0"
        raise CellError(f"{path}{at}: {type(error).__name__}: {text}") from None
    return module


def _own_cells(module: types.ModuleType) -> list[str]:
    """Names of the cells that a file defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, Cell) and value.__module__ == module.__name__
    ]


def _only_cell(path: Path, module: types.ModuleType) -> str:
    """The name of the one cell of a file."""
    own_cells = _own_cells(module)
    if len(own_cells) == 1:
        return own_cells[0]
    if own_cells:
        raise CellError(
            f"{path}: found {len(own_cells)} cells, {', '.join(own_cells)}; allowed: one's name, as "
            f"{path.name}:{own_cells[0]}"
        )
    raise CellError(f"{path}: found no subclass of charlm.cells.Cell; {_ALLOWED}")


def _cell(path: Path, module: types.ModuleType, name: str) -> Cell:
    own_cells = _own_cells(module)
    named = getattr(module, name, None)
    if inspect.isclass(named) and issubclass(named, Cell) and named is not Cell:
        _check_class(str(path), named)
        if name in CELLS:
            raise CellError(f"{path}: found a class {name}, as a built-in kind is called; allowed: another name")
        return named.model_construct(kind=f"{path}:{name}")
    description = f"no class {name}" if named is None else f"{name}, which is no subclass of charlm.cells.Cell"
    near = difflib.get_close_matches(name, own_cells, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise CellError(f"{path}: found {description}; allowed: {' | '.join(own_cells) or 'a class of a cell'}{hint}")


def _check_class(where: str, cell: type[Cell]) -> None:
    """CellError unless a checkpoint can hold the class's name and its options, and a config their defaults."""
    name = cell.__name__
    if not is_name(name):
        raise CellError(f"{where}: found a class {name}; allowed: a name of ASCII letters, not beginning with _")
    options = [option for option in cell.model_fields if option not in Cell.model_fields]
    for option in options:
        if hasattr(StoredCell, option):
            raise CellError(f"{where}: found an option {name}.{option}, which Cell has; allowed: another name")
        if not is_name(option):
            raise CellError(f"{where}: found an option {name}.{option}; allowed: a name of ASCII letters")
        default = cell.model_fields[option].get_default(call_default_factory=True)
        is_number = isinstance(default, int | float) and abs(default) <= LARGEST
        if not is_number and default is not PydanticUndefined and not isinstance(default, str | None):
            raise CellError(
                f"{where}: found {name}.{option} = {default!r:.40}; allowed: a finite number, text, true or false"
            )
    _check_defaults(where, cell)
    initial = cell.initial
    is_tuple = isinstance(initial, tuple)
    if not is_tuple or any(option not in options or initial.count(option) > 1 for option in initial):
        listed = ", ".join(options) or "there are none"
        raise CellError(f"{where}: found {name}.initial = {initial!r:.80}; allowed: a tuple of options: {listed}")


def _check_defaults(where: str, cell: type[Cell]) -> None:
    """CellError unless a config may give each option its default, if it has one."""
    try:
        cell.model_validate(cell.model_validate({}).model_dump(mode="json"))
    except ValidationError as error:
        for fault in error.errors():
            if fault["type"] != "missing":
                option, text = ".".join(map(str, fault["loc"])), fault["msg"].rpartition("; ")[2]
                found = f"{where}: found {cell.__name__}.{option} = {fault['input']!r:.40} as a default"
                raise CellError(f"{found}; {text}") from None
