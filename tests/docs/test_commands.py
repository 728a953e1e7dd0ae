"""The commands, Python and YAML of every page work as they are written, with little to do."""

import json
import re
import shlex
import string
import warnings
from pathlib import Path

import pytest

import charlm
from charlm.config import load_config
from charlm.data.fetch import CATALOG
from tests.conftest import ROOT
from tests.docs.pages import NAMES, blocks, commands, inline_code
from tests.text import words_text

TEXT = f"Once upon a time ROMEO: JULIET:\n{string.printable}\n{words_text(8000)}"
FEW_UPDATES = {"train.max_steps": 2, "threads": 1, "device": "cpu"}
TINY = {"model.cell.hidden": 8, "model.embedding": 4, "train.batch_size": 2, **FEW_UPDATES}


def as_words(options: dict[str, object]) -> list[str]:
    return [word for key, value in options.items() for word in ("--set", f"{key}={value}")]


LESS = {
    "plan": as_words(TINY),
    "train": as_words(TINY),
    "compare": ["--minutes", "0.01", *as_words(FEW_UPDATES)],  # the last of two --minutes counts
    "sample": ["--length", "20"],
}
"""What is added to commands."""


@pytest.fixture
def folder(quick: None, standard_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder of a newcomer: the texts that the pages speak of, and a small standard library."""
    monkeypatch.chdir(tmp_path)
    names = ("data/tinyshakespeare.txt", "my.txt", "more.txt", "names.txt", "library/code.py", "candidates.txt")
    names += ("app.log", "normal.log", "yesterday.log", "book.txt")
    labeled = [f"python\timport os{n}\nc++\tint x = {n};\nreadme\tA package of {n}\n" for n in range(99)]
    texts = dict.fromkeys(names, TEXT) | {
        "lines.txt": "".join(labeled),
        "known.txt": "".join(labeled[:5]),
        "new.txt": "import os\nint x = 1;\n",
        "leaky.py": blocks(ROOT / "docs/cells/own.md", "python")[0],
    }
    for name, text in texts.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")


def train_runs(cli, runs: set[str]) -> None:
    """Runs that a page uses without training them."""
    for run in runs:
        source = ["lines.txt", "--lines"] if run == "runs/lines" else ["--set", "data.source=data/tinyshakespeare.txt"]
        assert cli("train", "--config", "lstm", *source, "--run-dir", run, *LESS["train"]).code == 0


def without_escapes(line: str) -> str:
    """The line with the text that the shell makes of each $'…'."""
    return re.sub(r"\$'([^']*)'", lambda quoted: shlex.quote(quoted[1].encode().decode("unicode_escape")), line)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", NAMES)
def test_commands_run_in_the_order_of_the_page(name, cli):
    """torchrun with real processes has tests of its own."""
    lines = [re.sub(r"^torchrun .* -m charlm ", "charlm ", line) for line in commands(ROOT / name)]
    lines = [line for line in lines if line.startswith(("charlm ", "tail ")) and "data fetch" not in line]
    trained = [line.split("--run-dir ")[1].split()[0] for line in lines if re.search(r"charlm train .*--run-dir", line)]
    train_runs(cli, set(re.findall(r"runs/\w+", "\n".join(lines))) - set(trained))
    for line in lines:
        words, _, target = without_escapes(line).partition(" > ")
        piped = b""
        for command in words.split(" | "):
            if command.startswith("tail -f "):
                piped = Path(command.removeprefix("tail -f ")).read_bytes()
                continue
            arguments = shlex.split(command)[1:]
            continues = arguments[:2] == ["train", "--resume"]
            less = ["--set", "train.max_steps=3"] if continues else LESS.get(arguments[0], [])
            result = cli(*arguments, *less, stdin=piped)
            assert result.code == 0, f"{line}\n{result.err}"
            piped = result.out.encode()
        if target:
            Path(target).write_text(result.out, encoding="utf-8")
        if "--json" in words:
            assert [json.loads(row) for row in result.out.splitlines()]


def optional_package(program: str) -> str:
    """The package that a program needs besides charlm's own; "" for none."""
    return next((package for package in ("mlflow", "optuna") if f"import {package}" in program), "")


PROGRAMS = {(name, optional_package(program)): None for name in NAMES for program in blocks(ROOT / name, "python")}


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("name", "package"), PROGRAMS)
def test_python(name, package, cli, monkeypatch):
    if package:
        pytest.importorskip(package, reason=f"no {package}")
        warnings.simplefilter("ignore", DeprecationWarning)  # the package's own
    train, compare = charlm.train, charlm.compare

    def short_training(*words, overrides=(), **options):
        return train(*words, overrides={**dict(overrides), **TINY}, **options)

    def short_comparison(*words, minutes, **options):
        return compare(*words, minutes=minutes / 1000, overrides=FEW_UPDATES, **options)

    monkeypatch.setattr(charlm, "train", short_training)
    monkeypatch.setattr(charlm, "compare", short_comparison)
    programs = [program for program in blocks(ROOT / name, "python") if optional_package(program) == package]
    exports = [line for line in commands(ROOT / name) if line.startswith("charlm export ")]
    train_runs(cli, set(re.findall(r"runs/\w+", "".join([*programs, *exports]))))
    for line in exports:
        assert cli(*shlex.split(line)[1:]).code == 0
    for program in programs:
        few_trials = program.replace(", 5, 24\n", ", 5, 2\n")
        exec(compile(few_trials, "python block", "exec"), {})


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(ROOT / name, "yaml")])
def test_yaml(name, tmp_path):
    for block in blocks(ROOT / name, "yaml"):
        (tmp_path / "page.yaml").write_text(block, encoding="utf-8")
        load_config(tmp_path / "page.yaml")


def test_every_command_is_known_here():
    """No shell line goes untested by accident; `charlm data fetch` needs the network and has its own tests."""
    lines = [line for name in NAMES for line in commands(ROOT / name)]
    programs = {line.split()[0] for line in lines if not line.startswith("./scripts/")}
    assert programs == {"charlm", "tail", "tensorboard", "torchrun", "python"}
    fetched = {word for line in lines if line.startswith("charlm data fetch") for word in line.split()[3:]}
    assert fetched <= CATALOG.keys()


def test_scripts_with_their_options_and_files_exist():
    lines = {line for name in NAMES for line in (*commands(ROOT / name), *inline_code(ROOT / name))}
    tests = (line for line in inline_code(ROOT / "docs/reliability.md") if line.startswith("tests/"))
    lines |= {f"./scripts/test {line}" for line in tests}
    for line in (line for line in lines if line.startswith("./scripts/")):
        script, *words = shlex.split(line)
        assert (ROOT / script).stat().st_mode & 0o100, line
        text = (ROOT / script).read_text(encoding="utf-8")
        programs = re.findall(r"(?:benchmarks|tests/stress)/\w+\.py", text)
        text += "".join((ROOT / file).read_text(encoding="utf-8") for file in programs)
        assert [word for word in words if word.startswith("--") and word not in text] == [], line
        assert [word for word in words if word.startswith("tests/") and not (ROOT / word).exists()] == [], line
