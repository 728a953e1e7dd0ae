"""What the pages say exists: links, anchors, images, commands, options, configs and files."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer

from charlm.config.options import options_table
from charlm.config.shipped import shipped_configs
from tests.conftest import ROOT
from tests.docs.pages import NAMES, PAGES, anchors, commands, inline_code

KEYS = set(re.findall(r"^\| `([\w.]+)`", options_table(), re.MULTILINE))
SECTIONS = {key.rpartition(".")[0] for key in KEYS}


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_options_are_those_of_the_schema():
    heading, table, rest = (ROOT / "docs/options.md").read_text(encoding="utf-8").partition("| option |")
    assert heading.startswith("# Options\n")
    assert table + rest == options_table(), (
        "docs/options.md: put the output of `charlm config options` below its heading"
    )


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
    linked = set(re.findall(r"\((docs/[\w-]+\.md)", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert linked == {name for name in NAMES if name.startswith("docs/")}


def test_the_layout_names_every_layer():
    page = (ROOT / "docs/development.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `charlm/(\w+)(?:/|\.py)` \|", page, re.MULTILINE)
    found = {path.stem for path in (ROOT / "charlm").iterdir() if path.is_dir() or path.suffix == ".py"}
    found = {name for name in found if not name.startswith(("_", "."))}
    assert set(named) == found
    contract = re.search(
        r"^layers = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert contract
    assert named == re.findall(r'"(\w+)"', contract[1])


def test_every_picture_is_shown():
    shown = {
        (page.parent / image).resolve()
        for page in PAGES
        for image in re.findall(r"!\[[^]]+\]\((.+?)\)", page.read_text())
    }
    assert shown == set((ROOT / "docs").glob("*.png"))


def test_no_placeholder_is_left():
    for page in PAGES:
        assert not re.findall(
            r"\b(?!CHARLM_|GOMP_|OMP_|GLOO_|NCCL_|SLURM_)[A-Z]+_[A-Z]+\b|TODO|XXX", page.read_text(encoding="utf-8")
        ), page


def command(words: list[str]) -> Any:
    """The innermost command that these words name; the words behind it are its arguments."""
    from charlm.cli import app

    found: Any = typer.main.get_command(app)
    for word in words:
        if word in getattr(found, "commands", {}):
            found = found.commands[word]
        else:
            assert not hasattr(found, "commands") or word.startswith("-"), f"charlm {' '.join(words)}"
            break
    return found


def options(found: Any) -> set[str]:
    return {name for parameter in found.params for name in [*parameter.opts, *parameter.secondary_opts]} | {"--help"}


def every_command(found: Any) -> Iterator[Any]:
    yield found
    for below in getattr(found, "commands", {}).values():
        yield from every_command(below)


def test_commands_and_their_options_exist():
    for name in NAMES:
        for text in {*commands(ROOT / name), *inline_code(ROOT / name)}:
            if text.startswith("charlm "):
                words = shlex.split(text)[1:]
                known = options(command(words))
                assert [word for word in words if word.startswith("--") and word.split("=")[0] not in known] == [], (
                    f"{name}: {text}"
                )


def test_the_quickstart_uses_and_shows_commands_that_exist():
    lines = re.findall(r"\.venv/bin/charlm (.*)", (ROOT / "scripts/quickstart").read_text(encoding="utf-8"))
    assert len(lines) == 5
    for words in map(shlex.split, lines):
        assert {word for word in words if word.startswith("--")} <= options(command(words)), words
        if "--config" in words:
            assert words[words.index("--config") + 1] in shipped_configs()


def test_options_alone_exist():
    """`--novelty` and the like, without the command that they belong to."""
    for name in NAMES:
        known = {option for found in every_command(command([])) for option in options(found)}
        scripts = "".join(file.read_text() for place in ("scripts/*", "benchmarks/*.py") for file in ROOT.glob(place))
        for text in inline_code(ROOT / name):
            if text.startswith("--"):
                option = text.split()[0]
                assert option in known or f'"{option}"' in scripts, f"{name}: {text}"


def test_config_keys_exist():
    for name in NAMES:
        text = "\n".join([*commands(ROOT / name), *inline_code(ROOT / name)])
        for key in re.findall(r"(?<![\w./-])(?:data|model|train|optimizer)\.[a-z_.]+\b(?!/)", text):
            assert key in KEYS | SECTIONS, f"{name}: {key}"


def test_configs_and_files_exist():
    for name in NAMES:
        for text in inline_code(ROOT / name):
            if re.fullmatch(r"(tinyshakespeare|python-stdlib|paper)-[\w-]+", text):
                assert text in shipped_configs(), f"{name}: {text}"
            if name != "data/README.md" and re.fullmatch(
                r"(charlm|benchmarks|tests|scripts|configs|docs)/[\w./-]*", text
            ):
                assert (ROOT / text).exists(), f"{name}: {text}"
