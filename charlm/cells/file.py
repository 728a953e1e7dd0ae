"""A cell in a Python file outside of charlm, whose kind is `path/to/file.py:Class`. Loading one runs the file."""

import hashlib
import importlib
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
from charlm.cells.cell import are_names, fault_of, is_in_file, place_of
from charlm.cells.check import LARGEST, is_name
from charlm.cells.stored import MOST_BYTES, SOURCES, StoredCell, digest_of_file
from charlm.errors import CellError
from charlm.system.console import say
from charlm.system.faults import fault_lines, json_schema, nearest
from charlm.system.files import read_file, reason_of

_ALLOWED = "allowed: a Python file with a subclass of charlm.cells.Cell, as ./leaky.py:Leaky"


def load_cell(kind: str) -> Cell:
    """A cell of the class that a kind names, with default options and the absolute path in its own kind.

    charlm runs a file once, and again if the file, or a module beside it that it imports, has changed; a line says so.
    CellError for whatever is wrong with it.
    """
    written, is_named, name = kind.rpartition(".py:")
    path = absolute(Path.cwd(), f"{written}.py" if is_named else kind)
    if registered_cell := _REGISTERED.get(f"{path}:{name}"):
        return registered_cell
    module = _module(path)
    own_cells = _own_cells(module)
    if not (is_named and name) and len(own_cells) > 1:
        listed = ", ".join(own_cells)
        example = f"{path.name}:{own_cells[0]}"
        raise CellError(f"{path}: found {len(own_cells)} cells, {listed}; allowed: the name of one, such as {example}")
    return _cell(module, name if is_named and name else own_cells[0])


def cells_of_file(path: Path) -> list[Cell]:
    """A cell of each class that a file defines, in its order, as `load_cell` gives it; CellError if there is none."""
    module = _module(absolute(Path.cwd(), str(path)))
    names = _own_cells(module)
    # A class without a step is the base of others.
    names = [name for name in names if getattr(module, name).step is not Cell.step] or names
    return [_cell(module, name) for name in names]


_REGISTERED: dict[str, Cell] = {}
"""Cells passed to `registered`, by their kind."""


@contextmanager
def registered(cell: Any) -> Iterator[dict[str, Any]]:
    """The settings that choose a cell class or object, during the block. TypeError for all but these and None."""
    if cell is None:
        yield {}
        return
    own_class = type(cell) if isinstance(cell, Cell) else cell
    if not _is_cell(own_class):
        raise TypeError(f"cell: found {cell!r}; allowed: a subclass of charlm.cells.Cell, or an object of one")
    options = cell.model_dump(exclude_unset=True, exclude={"kind"}) if isinstance(cell, Cell) else {}
    kind = own_class.model_fields["kind"].default
    if CELLS.get(kind) is not own_class:
        if not isinstance(cell, Cell) or not is_in_file(cell.kind):
            _check_class(own_class)
            file = getattr(sys.modules.get(own_class.__module__), "__file__", None) or ""
            if not is_in_file(file):  # as "<stdin>", or a script without an ending
                file = f"{own_class.__module__}.py"
            cell = own_class.model_construct(kind=f"{absolute(Path.cwd(), file)}:{own_class.__name__}")
        kind = cell.kind
        _REGISTERED[kind] = cell
    section = {"kind": kind, **options}
    try:
        yield {f"model.cell.{name}": value for name, value in section.items()}
    finally:
        _REGISTERED.pop(kind, None)


def absolute(folder: Path, path: str) -> Path:
    """A path that starts in `folder`, without dots and ~."""
    return Path(os.path.abspath(folder / os.path.expanduser(path)))  # noqa: PTH100, PTH111 (neither resolves links)


def _module(path: Path) -> types.ModuleType:
    try:
        source = read_file(path, MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else reason_of(error)
        raise CellError(f"{path}: {reason}; {_ALLOWED}") from None
    module, made_of = _RAN.get(path), SOURCES.get(str(path), {})
    if module is None or any(digest_of_file(path.parent / name) != digest for name, digest in made_of.items()):
        module, helpers = _run(path, source)
        SOURCES[str(path)] = {os.path.relpath(file, path.parent): digest_of_file(file) for file in (path, *helpers)}
        _RAN[path] = module
    return module


_RAN: dict[Path, types.ModuleType] = {}
"""The module that each path became."""


def _run(path: Path, source: bytes) -> tuple[types.ModuleType, list[Path]]:
    """The module of a cell's file, and the files beside it that it imports."""
    say("cell", f"{path}: runs this file, for the cells in it")
    module = types.ModuleType(f"charlm_cell_{hashlib.sha256(bytes(path) + source).hexdigest()[:16]}")
    module.__file__ = str(path)
    # Pydantic finds types, and inspect finds the file, by way of the module.
    sys.modules[module.__name__] = module
    try:
        with _importable(path.parent) as helpers:
            exec(compile(source, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        file = path
        if isinstance(error, SyntaxError):
            file, line, text = error.filename, error.lineno, error.msg
        else:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == str(path)]
            line = lines[-1] if lines else None
            text = str(error).partition("\n")[0]
        at = f", line {line}" if line else ""
        if isinstance(error, PydanticUserError):
            text = f"{text.partition('. ')[0]}; allowed: options with a type, as in scale: float = 3.0"
        if not isinstance(error, CellError):
            text = f"{type(error).__name__}: {text}"
        raise CellError(f"{file}{at}: {text}") from None
    return module, helpers


@contextmanager
def _importable(folder: Path) -> Iterator[list[Path]]:
    """Within the block, Python can import the modules and packages of a folder. Lists their files at its end."""
    helpers: list[Path] = []
    beside = {file.stem for file in folder.glob("*.py")} | {file.parent.name for file in folder.glob("*/*.py")}
    beside -= sys.stdlib_module_names

    def taken() -> dict[str, types.ModuleType]:
        """Take the modules with these names from those that are imported."""
        names = [name for name in sys.modules if name.partition(".")[0] in beside]
        return {name: sys.modules.pop(name) for name in names}

    others = taken()
    # Python would read bytecode again after a change within the same second.
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield helpers
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = writes_none
        helpers += [Path(module.__file__) for module in taken().values() if module.__file__]
        sys.modules.update(others)


def _own_cells(module: types.ModuleType) -> list[str]:
    """Names of the cells that a file defines itself."""
    own_cells = []
    for name, value in vars(module).items():
        if _is_cell(value) and value.__module__ == module.__name__:
            own_cells.append(name)
    if not own_cells:
        raise CellError(f"{module.__file__}: found no subclass of charlm.cells.Cell; {_ALLOWED}")
    return own_cells


def _is_cell(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Cell) and value is not Cell


def _cell(module: types.ModuleType, name: str) -> Cell:
    path, named = module.__file__, getattr(module, name, None)
    if named is None or not _is_cell(named):
        own_cells = _own_cells(module)
        description = f"no class {name}" if named is None else f"{name}, which is no subclass of charlm.cells.Cell"
        raise CellError(f"{path}: found {description}; allowed: {' | '.join(own_cells)}{nearest(name, own_cells)}")
    _check_class(named)
    if name in CELLS:
        raise CellError(f"{path}: found a class {name}, the name of a built-in kind; allowed: another name")
    return named.model_construct(kind=f"{path}:{name}")


def _check_class(cell: type[Cell]) -> None:
    """CellError unless a checkpoint can hold the class's name and its options, and a config their defaults."""

    def require(holds: bool, attribute: str, found: str, allowed: str) -> None:
        if not holds:
            raise fault_of(cell, attribute, found, allowed)

    name, initial = cell.__name__, cell.initial
    require(is_name(name), "", f"a class {name}", "a name of ASCII letters, not beginning with _")
    options = [option for option in cell.model_fields if option not in Cell.model_fields]
    for option in options:
        require(not hasattr(StoredCell, option), option, f"an option {option}, which Cell has", "another name")
        require(is_name(option), option, f"an option {option}", "a name of ASCII letters")
        default = cell.model_fields[option].get_default(call_default_factory=True)
        require(default is not PydanticUndefined, option, "no default", f"one, as in {option}: float = 0.0")
        is_plain = isinstance(default, str | None) or (isinstance(default, int | float) and abs(default) <= LARGEST)
        require(is_plain, option, f"{option} = {default!r:.40}", "a finite number, text, true or false")
    try:
        cell.model_validate(cell.model_validate({}).model_dump(mode="json"))
    except ValidationError as error:
        where = place_of(cell, str(error.errors()[0]["loc"][0]))
        defaults = vars(cell.model_construct())
        raise CellError(fault_lines(error, json_schema(cell), defaults, {(): where})[0]) from None
    is_known = are_names(initial) and {*initial} <= {*options}
    listed = ", ".join(options) or "there are none"
    require(is_known, "initial", f"initial = {initial!r:.80}", f"a tuple of options: {listed}")
