"""The package as its files and docs/development.md say it is."""

import ast
import re
from pathlib import Path

import pytest

from charlm.cells import CELLS
from tests.conftest import ROOT

PACKAGE = ROOT / "charlm"
FILES = sorted(PACKAGE.rglob("*.py"))
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
    assert [path.name for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) > 400] == []


def test_the_stops_of_a_character_and_the_nouns_of_the_page_exist() -> None:
    page = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    stops, nouns = re.split(r"^## (?:Follow a character|Nouns|Names)$", page, flags=re.MULTILINE)[1:3]
    rows = re.findall(r"^\| `(?:\w+\.)?(\w+)` \| `([\w./]+)` \|", stops, re.MULTILINE)
    assert len(rows) == 13
    for name, file in rows:
        assert re.search(rf"\b{name}\(", (ROOT / file).read_text(encoding="utf-8")), f"{name} in {file}"
    defined = {name for path in FILES for name in re.findall(r"(?:class|def) (\w+)", path.read_text(encoding="utf-8"))}
    names = {name for dotted in re.findall(r"`([\w.]+)`", nouns) for name in dotted.split(".")}
    assert names <= defined
    assert len(names) >= 20
