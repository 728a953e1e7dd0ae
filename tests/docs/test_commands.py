"""The commands, Python and YAML of every page work as they are written."""

import functools
import json
import re
import shlex
import string
import sysconfig
from pathlib import Path

import pytest

import charlm
from charlm.config import load_config
from charlm.data.catalog import CATALOG
from tests.conftest import ROOT
from tests.docs.pages import NAMES, blocks, commands, inline_code
from tests.text import words_text

TEXT = f"Once upon a time ROMEO: JULIET:\n{string.printable}\n{words_text(8000)}"
TINY = {
    "model.cell.hidden": 8,
    "model.embedding": 4,
    "train.batch_size": 2,
    "train.max_steps": 2,
    "threads": 1,
    "device": "cpu",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a newcomer: the texts that the pages speak of, and a small standard library."""
    monkeypatch.chdir(tmp_path)
    for name in (
        "data/tinyshakespeare.txt",
        "my.txt",
        "more.txt",
        "names.txt",
        "candidates.txt",
        "app.log",
        "book.txt",
        "library/code.py",
    ):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(TEXT, encoding="utf-8")
    Path("leaky.py").write_text(blocks(ROOT / "docs/cells.md", "python")[0], encoding="utf-8")
    for name in ("lines.txt", "held-out.txt"):
        lines = [f"python\timport os{n}\nc++\tint x = {n};\nreadme\tA package of {n}\n" for n in range(99)]
        Path(name).write_text("".join(lines), encoding="utf-8")
    Path("new.txt").write_text("import os\nint x = 1;\n", encoding="utf-8")
    found = {"stdlib": str(tmp_path / "library")}
    get_path = sysconfig.get_path
    monkeypatch.setattr(sysconfig, "get_path", lambda name, *others: found.get(name) or get_path(name, *others))
    monkeypatch.setattr("charlm.training.plan._MEASURE_S", 0.0)
    monkeypatch.setattr("charlm.choice.speed.measure", lambda *_: 0.01)
    return tmp_path


def train_run(cli, run: str) -> None:
    """A run that a page uses without training it."""
    source = ["--set", "data.source=data/tinyshakespeare.txt"]
    if run == "runs/lines":
        source = ["lines.txt", "--lines", "--labels", "\\t"]
    assert cli(*shortened(["train", "--config", "lstm", *source, "--run-dir", run])).code == 0


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", NAMES)
def test_commands_run_in_the_order_of_the_page(name, cli):
    """Training is cut to two tiny updates."""
    lines = [as_one_process(line) for line in commands(ROOT / name)]
    lines = [line for line in lines if line.startswith("charlm ") and "data fetch" not in line]
    trained = [line.split("--run-dir ")[1].split()[0] for line in lines if re.search(r"charlm train .*--run-dir", line)]
    for run in set(re.findall(r"runs/\w+", "\n".join(lines))) - set(trained):
        train_run(cli, run)
    for line in lines:
        words, _, target = line.partition(" > ")
        result = cli(*shortened(shlex.split(words)[1:]))
        assert result.code == 0, f"{line}\n{result.err}"
        if target:
            Path(target).write_text(result.out, encoding="utf-8")
        if "--json" in words:
            assert [json.loads(row) for row in result.out.splitlines()]
        if "--per-char scores.csv" in words:
            assert len(Path("scores.csv").read_text(encoding="utf-8").splitlines()) > len(TEXT) - 10


def as_one_process(line: str) -> str:
    """The command that torchrun starts; with real processes it has tests of its own."""
    return re.sub(r"^torchrun .* -m charlm ", "charlm ", line)


def shortened(words: list[str]) -> list[str]:
    """The same command with little to do; the checkpoint of a run is as tiny as the run that made it."""
    if words[0] in ("train", "plan") and "--resume" not in words:
        words = [*words, *(word for key, value in TINY.items() for word in ("--set", f"{key}={value}"))]
    if words[0] == "tune":
        tiny = [word for key, value in TINY.items() for word in ("--set", f"{key}={value}")]
        words = [*words, *(tiny if "--config" in words else []), "--trials", "2"]
    if "--resume" in words:
        words = [*words, "--set", "train.max_steps=3"]
    if words[0] == "sample":
        words = [*words, "--length", "20"]
    if words[0] == "eval" and "--dynamic" in words:
        words = [*words, "--streams", "16"]
    return words


def short_training(train, *words, overrides=(), **options):
    return train(*words, overrides={**dict(overrides), **TINY}, **options)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", [name for name in NAMES if blocks(ROOT / name, "python")])
def test_python(name, cli, monkeypatch):
    """Training is cut to two tiny updates here too."""
    monkeypatch.setattr(charlm, "train", functools.partial(short_training, charlm.train))
    found = blocks(ROOT / name, "python")
    exports = [line for line in commands(ROOT / name) if line.startswith("charlm export ")]
    for run in set(re.findall(r"runs/\w+", "".join([*found, *exports]))):
        train_run(cli, run)
    for line in exports:
        assert cli(*shlex.split(line)[1:]).code == 0
    for block in found:
        exec(compile(block, "python block", "exec"), {})


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(ROOT / name, "yaml")])
def test_yaml(name, tmp_path):
    for block in blocks(ROOT / name, "yaml"):
        (tmp_path / "page.yaml").write_text(block, encoding="utf-8")
        load_config(tmp_path / "page.yaml")


def test_every_command_is_known_here():
    """No shell line goes untested by accident; `charlm data fetch` needs the network and has its own tests."""
    lines = [line for name in NAMES for line in commands(ROOT / name)]
    assert len([line for line in lines if line.startswith("charlm ") and "fetch" not in line]) > 20
    assert {line.split()[0] for line in lines if not line.startswith("./scripts/")} == {
        "charlm",
        "tensorboard",
        "torchrun",
    }
    fetched = [word for line in lines if line.startswith("charlm data fetch") for word in line.split()[3:]]
    assert fetched
    assert set(fetched) <= CATALOG.keys()


def test_scripts_and_their_tests_exist():
    """Every ./scripts/… command: the script, its options, its test files, and a test for each word behind -k."""
    for name in NAMES:
        page = ROOT / name
        for line in {*commands(page), *inline_code(page)}:
            if not line.startswith("./scripts/"):
                continue
            script, *words = shlex.split(line)
            assert (ROOT / script).stat().st_mode & 0o100, f"{name}: {line}"
            programs = re.findall(r"(?:benchmarks|tests/stress)/\w+\.py", (ROOT / script).read_text(encoding="utf-8"))
            program = "".join((ROOT / file).read_text(encoding="utf-8") for file in [script, *programs])
            for option in (word for word in words if word.startswith("--")):
                assert option in program, f"{name}: {line}"
            paths = [ROOT / word for word in words if word.startswith("tests/")]
            assert all(path.exists() for path in paths), f"{name}: {line}"
            files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("test_*.py"))]
            tests = re.findall(
                r"^def (test_\w+)", "".join(file.read_text(encoding="utf-8") for file in files), re.MULTILINE
            )
            if "-k" in words and files:
                for wanted in words[words.index("-k") + 1].split(" or "):
                    assert any(wanted in f"{file.stem} {test}" for file in files for test in tests), f"{name}: {line}"
