"""Makes the lesson's part of learn/charlm.ipynb, chapter by chapter; the cells behind it stay as they are.

    python -m tests.learn.notebook

A chapter begins with `# %% Title`, a line that editors know as the beginning of a cell; its text is the comment below.
"""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LEARN = Path(__file__).parents[2] / "learn"
LESSON, NOTEBOOK = LEARN / "lesson.py", LEARN / "charlm.ipynb"
LAST_CHAPTER = "def compare("


def notebook() -> str:
    """The notebook as JSON."""
    on_disk = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    [last] = [n for n, cell in enumerate(on_disk["cells"]) if cell["source"][0].startswith(LAST_CHAPTER)]
    cells = [*_lesson_cells(LESSON.read_text(encoding="utf-8")), *on_disk["cells"][last + 1 :]]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return json.dumps({**on_disk, "cells": cells}, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def code_cells() -> list[str]:
    """The code of the notebook on disk, cell by cell."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def _lesson_cells(source: str) -> Iterator[dict[str, Any]]:
    """The docstring and the imports, then text and code of each chapter; not the last lines, which run the program."""
    chapters, _, _ = source.partition('\nif __name__ == "__main__":')
    first, *others = re.split(r"^# %% ", chapters, flags=re.MULTILINE)
    title, *paragraphs = (ast.get_docstring(ast.parse(first)) or "").split("\n\n")
    yield _text("\n\n".join([f"# {title}", *(text for text in paragraphs if not text.startswith("    "))]))
    yield _code(first.split('"""\n', 1)[1])
    for chapter in others:
        title, *lines = chapter.splitlines()
        end = next(place for place, line in enumerate(lines) if not line.startswith("#"))
        text = "\n".join(line.removeprefix("# ") for line in lines[:end])
        text = re.sub(r"^(    .*\n)(?!    )", r"\1\n", text, flags=re.MULTILINE)  # an empty line below equations
        yield _text(f"## {title}\n\n{text}")
        yield _code("\n".join(lines[end:]))


def _text(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source.strip().splitlines(keepends=True)}


def _code(source: str) -> dict[str, Any]:
    lines = source.strip().splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines}


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
