"""Makes learn/charlm.ipynb: the lesson, chapter by chapter, and then the same in charlm.

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


def notebook() -> str:
    """The notebook as JSON."""
    cells = [*_lesson_cells(LESSON.read_text(encoding="utf-8")), *_charlm_cells()]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


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


def _charlm_cells() -> Iterator[dict[str, Any]]:
    yield _text('Training takes less than a minute. `compare("my.txt")` reads a text of your own.')
    yield _code("compare()")
    yield _text("""\
## 10. The same in charlm

In charlm, a cell is its forward step alone; the backward pass and the kernels are derived from it. The weights have the
same names and shapes. So the RHN above, in charlm and with the same weights, should have the same gradients.""")
    yield _code("""\
import torch

import charlm
from charlm.layers import RecurrentLayers

network = Network(RHN(16), V=10, dtype=np.float64)
layers = RecurrentLayers(charlm.cells.RHN(hidden=16, depth=3), input_size=10).double()
for name, parameter in layers.named_parameters():
    parameter.data = torch.tensor(network.w[name.removesuffix("_l0")])

x_TB = np.random.default_rng(1).integers(10, size=(20, 4))
logits, _, saved = network.forward(x_TB)
dw, _ = network.backward(np.ones_like(logits), saved)

h_TBH, _ = layers(torch.nn.functional.one_hot(torch.tensor(x_TB), 10).double())
(h_TBH @ torch.tensor(network.w["decoder.weight"]).T).sum().backward()
for name, parameter in layers.named_parameters():
    difference = np.abs(parameter.grad.numpy() - dw[name.removesuffix("_l0")]).max()
    print(f"{name}: largest difference {difference:.0e}")""")
    yield _text("""\
charlm looks at the text, measures the machine, chooses kind, size and all other settings for a minute, and trains.""")
    yield _code("""\
run = charlm.train("builtin:python-stdlib", minutes=1)
run""")
    yield _code('print(run.load().sample("def ", length=400, temperature=0.7, seed=1))')
    yield _text("""\
In a terminal, `charlm look` and the run's folder make a page of what this model does with a text: the surprise at each
character, units and gates. Then try the [exercises](README.md).""")


def _text(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source.strip().splitlines(keepends=True)}


def _code(source: str) -> dict[str, Any]:
    lines = source.strip().splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines}


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")
