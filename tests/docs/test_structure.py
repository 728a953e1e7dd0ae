"""The package as its files say it is: each folder lists its files, and files do not import one another in circles."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from charlm.cells import CELLS
from tests.conftest import ROOT

PACKAGE = ROOT / "charlm"
FOLDERS = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_lists_its_files(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    listed = set(re.findall(r"(?<![\w/.])\w+\.(?:py|cpp|h)\b", text))
    files = {path.name for pattern in ("*.py", "*.cpp", "*.h") for path in folder.glob(pattern)} - {"__init__.py"}
    if folder.name == "cells":  # the kinds are listed in CELLS
        files -= {f"{kind}.py" for kind in CELLS}
    assert listed == files


def test_no_file_is_longer_than_four_hundred_lines() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path.name: length for path, length in lengths.items() if length > 400} == {}


def test_files_do_not_import_one_another_in_circles() -> None:
    modules = {_module(path): path for path in PACKAGE.rglob("*.py")}
    imports = {module: _imported(path, modules) - {module} for module, path in modules.items()}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imported(path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of charlm that a file imports when it is imported."""
    imported = set()
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom) and statement.module in modules:
            names = {f"{statement.module}.{name.name}" for name in statement.names}
            imported |= names & modules.keys() or {statement.module}
    return imported


def test_the_stops_of_a_character_and_the_nouns_of_the_page_exist() -> None:
    page = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    stops, nouns = re.split(r"^## (?:Follow a character|Nouns|Names)$", page, flags=re.MULTILINE)[1:3]
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w./]+)` \|", stops, re.MULTILINE)
    assert [row for row in rows if row[0] not in _names(ROOT / row[1])] == []
    assert len(rows) == 13
    names = re.findall(r"`([\w.]+)`", nouns)
    everywhere = {name for path in PACKAGE.rglob("*.py") for name in _names(path)}
    assert set(names) <= everywhere
    assert len(names) >= 20


def _names(path: Path) -> set[str]:
    """The classes and functions of a file; a method with its class."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return set(re.findall(r"\b(\w+)\(", text))
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return names
