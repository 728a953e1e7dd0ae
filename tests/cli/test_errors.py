"""What users do wrong: one line on stderr, its exit code, and nothing that a terminal obeys.

This table holds the wording of errors; the other files test what commands do.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
import torch
import typer.main

from charlm.cli import app
from tests.conftest import TINY
from tests.processes import environments
from tests.stress.fuzz import COMMANDS
from tests.text import BYTE, ESC, RTL, SEEN, words_text

USAGE = [
    (f"x{ESC}{RTL}", r"No such command 'x\x1bc\u202e'."),
    (f"eval r --split {RTL}", r"Invalid value for '--split': found '\u202e'; allowed: 'train', 'valid', 'test'"),
    ("train", "a text is needed, for example my.txt or builtin:python-stdlib; or --config (see `charlm config list`)"),
    ("train --resume", "--resume needs --run-dir, the folder of the run to resume"),
    ("train - --resume --run-dir r", "--resume needs a text that can be read again; save it to a file"),
    ("train --resume --run-dir r --init-from x", "--init-from starts a new run; add TEXT or --config, or leave it out"),
    (f"train --config c --device {RTL}", r"found \u202e; allowed: auto, cpu, cuda, cuda:1 (the second GPU) and so on"),
    ("sample r --temperature nan", "--temperature: found nan; allowed: a number from 0 to 1,"),
    ("sample run --new", "--new needs a model of records"),
    ("data info text.txt --records . --lines", "--lines and --records exclude one another"),
    ("score run z.txt --per-char", "--per-char needs --json"),
    ("score no-such-run z.txt --above p101", "--above: found 'p101'; allowed: bits per character (3.2), or a percent"),
    ("score run - --above p9", "--above p9: found a pipe; allowed: a file, a number such as --above 3.2, or --of "),
    ("classify run z.txt --labels it,it --separator .", "labels: found ['it', 'it']; allowed: one or more texts, "),
    ("train x.txt —minutes 5", "found —minutes; allowed: options, or ./—minutes for a file of this name; "),
    ("train x.txt -minutes 5", "found -minutes; type --minutes"),
    ("train x.txt --cell gru", "found --cell; allowed: the options of `charlm train --help`; type --set model.cel"),
    ("train --text x.txt", "found --text; allowed: the options of `charlm train --help`; type the text alone, without"),
    ("sample run --cell gru", "No such option: --cell"),
]  # fmt: skip

NAME, SHOWN = f"a{ESC}{RTL}\u2028\n", r"a\x1bc\u202e\u2028\n"
UNSEEN = rf"found '\x1b' (U+001B), '\u202e' (U+202E), '😀' (U+1F600), which the model has never seen; allowed: {SEEN}; "
TRAIN = "train --config tiny.yaml --set data.source"
ERRORS = [
    (f"config show {NAME}{BYTE}", rf"{SHOWN}\xff: found no such file; allowed: a YAML file, or a name from `charlm co"),
    ("config show quotes.yaml", '; allowed: plain YAML; type " for ” (U+201D)'),
    ("config show lsmt", "a YAML file, or a name from `charlm config list`; did you mean 'lstm' or 'slstm'?"),
    (f"sample run --prompt {RTL}{BYTE}", r"--prompt: found '\u202e' (U+202E), byte 0xFF (not UTF-8), which the model "),
    (
        "sample log.txt",
        "log.txt: found a text; allowed: a run's folder or a checkpoint; `charlm train log.txt` ma",
    ),
    ("eval run --file odd.txt", UNSEEN),
    ("eval run --file s.txt", "evaluation: found a text of 1 character; allowed: 2 or more"),
    ("score run log.txt", f"log.txt, line 3: found 'Z' (U+005A), which the model has never seen; allowed: {SEEN}"),
    ("eval run --per-char no/scores.csv", "No such file or directory; allowed: a file that can be written"),
    ("look run --file text.txt --out text.txt", "exists and is another file; allowed: a new or empty file, or a page "),
    ("report folder", "folder: holds no run; allowed: the folder of a run, a checkpoint of one, or a folder that"),
    ("data fetch text8 tiny", "tiny: found no such text; allowed: tinyshakespeare | text8 | enwik8"),
    ("data info pipe", "pipe: no regular file, so it cannot be read twice; allowed: "),
    ("train --config tiny.yaml --run-dir run", "already holds a run; allowed: --resume to continue it, or another --r"),
    ("train --config tiny.yaml --run-dir text.txt", "File exists; allowed: a folder that can be written; see --run-d"),
    ("train --config tiny.yaml --run-dir mine", "mine/metrics.jsonl: exists, and the run would write to it; allowed: "),
    ("train log.txt --config tiny.yaml --init-from run", "; --set data.grow_vocabulary=true adds the new ones"),
    (f"{TRAIN}=empty.txt", "empty.txt: no text in 0 B; at least one character is needed; add text"),
    (f"{TRAIN}=abc.txt", "train split: 2 characters; 4 streams of 8 steps need at least 33; lower train.batch_"),
    (f"{TRAIN}=latin.txt", "latin.txt: line 1: byte 0xFF is not UTF-8 (invalid start byte); data.level: char needs "),
    (f"{TRAIN}=text.txt --set model.cell.hidden=1000000", "memory: the model and a window need at least "),
    ("train x.txt --minutes 1 --set train.max_minutes=3", "train.max_minutes: found beside minutes or its default; "),
    ("cells check empty.py", "empty.py: found no subclass of charlm.cells.Cell; "),
]
if not torch.cuda.is_available():
    commands = ("train --config tiny.yaml --run-dir new", "sample run")
    ERRORS += [(f"{words} --device cuda", " sees no GPU; allowed here: auto | cpu") for words in commands]


@pytest.fixture(scope="module")
def folder(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, a config, and files that cannot be used."""
    folder = tmp_path_factory.mktemp("errors")
    shutil.copytree(trained_run, folder / "run")
    (folder / "folder").mkdir()
    (folder / "mine").mkdir()
    os.mkfifo(folder / "pipe")
    files = {
        "text.txt": words_text(20_000).encode(), "tiny.yaml": TINY.format(source="text.txt").encode(),
        "mine/metrics.jsonl": b"years of work", "empty.txt": b"", "empty.py": b"",
        "s.txt": b"s", "z.txt": b"Z", "log.txt": b"so\ntee\nZe\n" * 300,
        "odd.txt": "so \x1b\u202e😀".encode(), "latin.txt": b"abc\xff", "abc.txt": b"abc",
        "quotes.yaml": 'data: {source: "a”}'.encode(),
        "bad.yaml": b"model: {cell: {kind: rhn, dept: 3}}\nseed: true\n",
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def refused(cli, folder, monkeypatch):
    """Runs a command in that folder, which it must leave as it is."""
    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    yield lambda words, **options: cli(*words.split(" "), **options)
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(("words", "text"), USAGE)
def test_usage(refused, words, text):
    error = refused(words).usage_error
    assert text in error
    assert not COMMANDS.search(error)


def below(words, command):
    """Every command with its words."""
    if not hasattr(command, "commands"):
        yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from below([*words, name], each)


def test_a_number_of_thousands_of_digits_is_refused_by_every_option(refused):
    tried = []
    for words, command in below([], typer.main.get_command(app)):
        arguments = ["gone" for each in command.params if each.param_type_name == "argument" and each.required]
        options = [each.opts[0] for each in command.params if each.param_type_name == "option" and not each.is_flag]
        for option in options:
            result = refused(" ".join([*words, *arguments, option, "9" * 5000]))
            assert result.code in (1, 2), (words, option)
            assert max(map(len, result.err.splitlines())) < 2200, (words, option)
            tried.append(option)
    assert {"--length", "--count", "--minutes", "--unknown-as", "--set"} <= {*tried}


@pytest.mark.parametrize(("words", "text"), ERRORS)
def test_errors(refused, words, text):
    error = refused(words).error
    assert text in error
    assert not COMMANDS.search(error)


@pytest.mark.parametrize("words", [words for words, _ in ERRORS if words.startswith(TRAIN)])
def test_plan_refuses_what_train_refuses(refused, words):
    planned, trained = (
        re.sub(r"\S+ GB are", "GB are", refused(each).error) for each in (words.replace("train", "plan", 1), words)
    )
    assert planned == trained


def test_all_faults_of_a_config_have_a_line_each(refused):
    result = refused("train --config bad.yaml --set threads=-1")
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "error: bad.yaml: model.cell.dept: unknown key; allowed: kind, hidden, depth, couple_gates, gate_bias; "
        "did you mean 'depth'?\n"
        "error: bad.yaml: seed: found true; allowed: an integer ≥ 0 and < 9,223,372,036,854,775,808\n"
        "error: --set threads=-1: threads: found -1; allowed: an integer ≥ 0 and ≤ 1,024\n"
    )


def test_processes_that_never_come_or_have_no_number(refused, monkeypatch):
    for name, value in environments(2, timeout_s=1)[0].items():
        monkeypatch.setenv(name, value)
    error = refused("train --config tiny.yaml").error
    assert error.endswith("1 s for each other (CHARLM_TIMEOUT_S); start all of them, and check their --rdzv-endpoint")
    monkeypatch.setenv("RANK", "2")
    error = refused("train --config tiny.yaml").error
    assert error.startswith("RANK: found '2' in the environment; allowed: integers from 0 to 1; ")
