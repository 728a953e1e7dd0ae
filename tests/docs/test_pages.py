"""What the pages say exists: links, anchors, images, commands, options, configs, files, and what was measured."""

import ast
import importlib
import json
import re
import shlex
from typing import Any

import pytest
import typer
from safetensors import safe_open

from charlm.cells import CELLS
from charlm.cli import app
from charlm.config import shipped_configs
from tests.conftest import ROOT
from tests.docs.options import options_table
from tests.docs.pages import NAMES, anchors, blocks, commands, inline_code

PACKAGE = ROOT / "charlm"
FOLDERS = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)


def test_options_are_those_of_the_schema():
    _, table, rest = (ROOT / "docs/options.md").read_text(encoding="utf-8").partition("| option |")
    assert table + rest == options_table(), "docs/options.md: write it with `python -m tests.docs.options`"


def test_links_lead_somewhere():
    for name in NAMES:
        page = ROOT / name
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if "://" in target:
                continue
            path, _, anchor = target.partition("#")
            linked = page.parent / path if path else page
            assert linked.exists(), f"{name}: {target}"
            assert not anchor or anchor in anchors(linked), f"{name}: {target}"


def test_every_page_is_linked_from_the_readme():
    """Those of the cells from docs/cells.md."""
    linked = set(re.findall(r"\((docs/[\w/-]+\.md)", (ROOT / "README.md").read_text(encoding="utf-8")))
    cells = re.findall(r"\((cells/[\w-]+\.md)", (ROOT / "docs/cells.md").read_text(encoding="utf-8"))
    assert linked | {f"docs/{page}" for page in cells} == {name for name in NAMES if name.startswith("docs/")}


@pytest.mark.parametrize("kind", CELLS)
def test_the_page_of_a_cell(kind, cli):
    """It says what the cell is for, has a check of it, and ends with what charlm derives from its step."""
    page = ROOT / f"docs/cells/{kind}.md"
    written, _, generated = page.read_text(encoding="utf-8").partition("## Equations\n")
    command = commands(page)[-1]
    assert command.startswith(f"charlm cells show {kind}")
    shown = cli(*shlex.split(command)[1:]).out
    ending = f"\n```sh\n{command}\n```\n\n```text\n{shown}```\n"
    assert generated == ending, f"{page.name}: put the output of `{command}` below it"
    for part in ("**For:**", "**Try:**", "## Check"):
        assert part in written, part
    assert all("assert_" in block for block in blocks(page, "python"))


def innermost(words: list[str]) -> Any:
    """The innermost command that these words name; the words behind it are its arguments."""
    command: Any = typer.main.get_command(app)
    for word in words:
        if word not in getattr(command, "commands", {}):
            assert not hasattr(command, "commands") or word.startswith("-"), f"charlm {' '.join(words)}"
            break
        command = command.commands[word]
    return command


def options(command: Any) -> set[str]:
    """The options of a command and of those below it."""
    own = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]} | {"--help"}
    return own.union(*map(options, getattr(command, "commands", {}).values()))


def test_commands_and_their_options_exist():
    files = (file for place in ("scripts/*", "benchmarks/*.py") for file in ROOT.glob(place))
    scripts = "".join(file.read_text() for file in files if file.is_file())  # Python leaves a folder there
    every_option = options(typer.main.get_command(app))
    for name in NAMES:
        texts = {*commands(ROOT / name), *inline_code(ROOT / name)}
        for text in {part for piped in texts for part in piped.split(" | ")}:
            if text.startswith("charlm "):
                words = shlex.split(text)[1:]
                used = {word.split("=")[0] for word in words if word.startswith("--")}
                assert used <= options(innermost(words)), f"{name}: {text}"
            elif text.startswith("--"):  # without the command that it belongs to
                option = text.split()[0]
                assert option in every_option or f'"{option}"' in scripts, f"{name}: {text}"


def test_keys_configs_and_files_exist():
    keys = set(re.findall(r"^\| `([\w.]+)`", options_table(), re.MULTILINE))
    keys |= {key.rpartition(".")[0] for key in keys}
    for name in NAMES:
        text = "\n".join([*commands(ROOT / name), *inline_code(ROOT / name)])
        used = set(re.findall(r"(?<![\w./-])(?:data|model|train|optimizer)\.[a-z_.]+\b(?!/)", text))
        assert used <= keys, name
        for text in inline_code(ROOT / name):
            if re.fullmatch(r"(tinyshakespeare|python-stdlib|paper)-[\w-]+", text):
                assert text in shipped_configs(), f"{name}: {text}"
            is_path = re.fullmatch(r"(charlm|benchmarks|tests|scripts|configs|docs|learn)/[\w./-]*", text)
            assert not is_path or name == "data/README.md" or (ROOT / text).exists(), f"{name}: {text}"


def test_the_tensors_of_the_page_are_those_of_a_checkpoint(trained_run):
    with safe_open(str(trained_run / "checkpoints/best.safetensors"), "numpy") as file:
        names = {*file.keys()}
    groups = {name.split("/")[0] for name in names}
    named = {text for text in inline_code(ROOT / "docs/training.md") if text.split("/")[0] in groups}
    assert {text.split("/")[0] for text in named} == groups
    assert {text for text in named if not text.endswith("…")} <= names


def test_the_pages_show_what_scripts_reproduce_recorded(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    recorded = importlib.import_module("reproduce")
    results = recorded.read_results()
    compared = json.loads(recorded.COMPARISON.read_text(encoding="utf-8"))
    page = recorded.PAGE.read_text(encoding="utf-8")
    assert results.keys() <= {row.name for row in recorded.ROWS}
    assert f"<!-- results -->\n{recorded.table(results)}<!-- /results -->\n" in page
    assert f"<!-- cells -->\n{recorded.table_of_cells(compared)}<!-- /cells -->\n" in page
    readme = recorded.README.read_text(encoding="utf-8")
    assert f"<!-- results -->\n{recorded.summary(results)}<!-- /results -->\n" in readme
    assert {row["cell"] for row in compared["rows"]} == CELLS.keys()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_lists_its_files(folder):
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    listed = set(re.findall(r"(?<![\w/.])\w+\.(?:py|cpp|h)\b", text))
    files = {path.name for pattern in ("*.py", "*.cpp", "*.h") for path in folder.glob(pattern)} - {"__init__.py"}
    if folder.name == "cells":  # the kinds are listed in CELLS
        files -= {f"{kind}.py" for kind in CELLS}
    assert listed == files


def test_the_functions_and_nouns_of_the_page_for_developers_exist():
    page = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    for name, file in re.findall(r"\| `(?:\w+\.)?(\w+)` \| `([\w./]+)` \|", page):
        assert re.search(rf"\b{name}\(", (ROOT / file).read_text(encoding="utf-8")), f"{name} in {file}"
    nouns = re.findall(r"`([\w.]+)`, `([\w/]+\.py)`", page)
    assert nouns
    for dotted, file in nouns:
        defined = set(re.findall(r"(?:class|def) (\w+)", (PACKAGE / file).read_text(encoding="utf-8")))
        assert {*dotted.split(".")} <= defined, f"{dotted} in {file}"


def test_the_layout_names_every_layer():
    page = (ROOT / "docs/development.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `charlm/(\w+)(?:/|\.py)` \|", page, re.MULTILINE)
    found = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert set(named) == {name for name in found if not name.startswith(("_", "."))}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    [layers] = re.findall(r"^layers = \[(.*?)\]", project, re.DOTALL | re.MULTILINE)
    assert named == re.findall(r"\w+", layers)


KEYS = {"Esc": '"Escape"', "Tab": '"Tab"', "Alt+1": "altKey", "Alt+5": "Digit([1-5])", "n": " n: (", "p": " p: ("}


@pytest.mark.parametrize(("name", "page"), [("report", "report"), ("look", "look"), ("browser", "model")])
def test_parts_and_keys_that_are_told_of_are_on_the_page(name, page):
    told, web = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8"), ROOT / "charlm/web"
    files = [web / page / "page.html", *web.glob(f"{page}/*.js"), *web.glob("shared/*.js")]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    parts = re.findall(r"^- \*\*([^*]+)\*\*", told, re.MULTILINE)
    assert len(parts) > 4
    assert [part for part in parts if part.split()[-1].lower() not in source.lower()] == []
    keys = {key for pair in re.findall(r"\b(Esc|Tab|Alt\+\w)\b|`([np])`", told) for key in pair if key}
    assert [key for key in keys if KEYS[key] not in source] == []
    assert re.findall(r"\b[Kk]eys? \d", told) == []
