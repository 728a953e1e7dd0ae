"""Errors quote input without sending control characters to the terminal."""

import io
import json
import subprocess
import sys

import pytest

from charlm.config import load_config
from charlm.system.console import say
from tests.stress.fuzz import COMMANDS
from tests.text import BYTE, ESC, RTL

NAME = f"a{ESC}{RTL}\u2028\n"


SHOWN = r"a\x1bc\u202e\u2028\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["config", "check", NAME + BYTE], rf"{SHOWN}\xff: found no such file; allowed: a YAML file, "),
        (["sample", NAME], f"{SHOWN}: no such file or folder; allowed: a run's folder or a checkpoint in "),
        (["data", "fetch", NAME], f"{SHOWN}: found no such text; allowed: "),
        (["data", "info", NAME], f"{SHOWN}: no such file or folder; "),
        (["train", "--resume", "--run-dir", NAME], f"{SHOWN}: no such file or folder; "),
        (["config", "check", "TINY", "--set", NAME], f"--set {SHOWN}: found no KEY=VALUE; "),
        (["config", "check", "TINY", "--set", f"{NAME}=1"], rf"--set {SHOWN}=1: a\x1bc\u202e: unknown key; "),
        (["config", "check", "TINY", "--set", f"{BYTE}=1"], r': found "\xff", which is not Unicode text; '),
        (["data", "info", NAME + BYTE], rf"{SHOWN}\xff: no such file or folder; "),
        (["config", "check", "TINY", "--set", f"seed='{RTL}'"], r"--set seed='\u202e': seed: found "),
        (["config", "check", "TINY", "--set", f"seed={BYTE}"], r"--set seed=\xff: unacceptable character #xdcff: "),
        (["sample", "RUN", "--prompt", "\x1b"], r"--prompt: found '\x1b' (U+001B), which the model has never "),
        (["sample", "RUN", "--prompt", f"{RTL}{BYTE}"], r": found '\u202e' (U+202E), '\udcff' (U+DCFF), which the "),
        (["sample", "RUN", "--stop", RTL], r"--stop: found '\u202e' (U+202E), which the model never writes; "),
        (["sample", "RUN", "--prompt-file", NAME], f"--prompt-file {SHOWN}: no such file or folder; "),
        (["sample", "x" * 300], "xxx: File name too long"),
        (["eval", "x" * 300], "xxx: File name too long"),
        (["train", "--config", "TINY", "--run-dir", "x" * 300], "xxx: File name too long; allowed: a folder that can "),
        (["train", "--resume", "--run-dir", "x" * 300], "xxx: File name too long; allowed: a folder that can "),
        (["eval", "RUN", "--file", "TEXT"], r"'\x1b' (U+001B) × 1, '\u202e' (U+202E) × 1, '😀' (U+1F600) × 1: not in "),
    ],
)  # fmt: skip
def test_errors_quote_nothing_raw(cli, trained_run, tiny_config, tmp_path, monkeypatch, words, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "TEXT").write_text("so \x1b\u202e😀", encoding="utf-8")
    named = {"RUN": trained_run, "TINY": tiny_config}
    error = cli(*[named.get(word, word) for word in words]).error
    assert text in error
    assert not COMMANDS.search(error)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([f"x{ESC}{RTL}"], r"No such command 'x\x1bc\u202e'."),
        (["sample", "r", f"--{ESC}{BYTE}"], r"No such option: --\x1bc\xff"),
        (["sample", "r", f"s{RTL}"], r"(s\u202e)"),
        (["sample", "r", "--length", ESC], "Invalid value for '--length': "),
        (["eval", "r", "--split", RTL], r"is not one of 'train', 'valid', 'test'."),
    ],
)
def test_usage_errors_quote_nothing_raw(cli, words, text):
    error = cli(*words).usage_error
    assert text in error
    assert not COMMANDS.search(error)


def test_usage_error_of_no_command_is_the_help(cli):
    assert "\n\n" in cli("config").err + cli("config").out


def test_arguments_of_a_process_of_its_own(tmp_path):
    words = [b"\xff\x1b\xc2\x9b.yaml", b"--set", b"a\xe2\x80\xae=\xff"]
    done = subprocess.run([sys.executable, "-m", "charlm", "config", "check", *words], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(rb"error: \xff\x1b\x9b.yaml: found no such file")


def test_what_the_library_says_is_printable(cli, monkeypatch):
    def told() -> str:
        say("kernels", f"compiling in {NAME}")
        return ""

    monkeypatch.setattr("charlm.config.options.options_table", told)
    assert cli("config", "options").err == f"kernels  compiling in {SHOWN}\n"


def test_odd_names_and_characters_all_the_way(cli, tmp_path):
    """A text of controls, in a file of such a name, is trained on, scored and sampled; nothing comes out raw."""
    folder = tmp_path / NAME
    folder.mkdir()
    text = folder / f"text{NAME}.txt"
    text.write_text(f"so{ESC}{RTL}\x9b\u2028\0 \x07" * 300, encoding="utf-8")
    config = folder / "c.yaml"
    words = ["model.cell.hidden=4", "train.max_steps=2", "train.batch_size=2", "train.sample_every=1", "threads=1"]
    overrides = [word for pair in words for word in ("--set", pair)]
    config.write_text(f"data: {{source: {json.dumps(str(text))}}}", encoding="utf-8")
    run = folder / "run"
    commands = [
        ["train", "--config", config, "--run-dir", run, *overrides],
        ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=3", "--json"],
        ["eval", run],
        ["eval", run, "--file", text, "--json"],
        ["plan", "--config", config, *overrides],
        ["config", "check", config],
        ["config", "show", config],
        ["data", "info", text],
        ["sample", run, "--json", "--novelty", "--prompt", f"{ESC}{RTL}"],
    ]
    for command in commands:
        result = cli(*command)
        assert result.code == 0, result
        assert not COMMANDS.search(result.out + result.err), command
    assert json.loads(result.out)["samples"][0]["prompt"] == f"{ESC}{RTL}"
    (tmp_path / "shown.yaml").write_text(cli("config", "show", config).out, encoding="utf-8")
    assert load_config(tmp_path / "shown.yaml") == load_config(config)


def test_samples_are_raw_in_a_pipe_and_written_out_on_a_terminal(monkeypatch):
    from charlm.cli import sample

    shown = []
    for terminal in (False, True):
        monkeypatch.setattr(sys, "stdout", Out(terminal))
        sample._print(f"a{ESC}\n", [[f"{RTL}\x9b"], ["\u200f\u2028"]], backward=False)
        shown.append(sys.stdout.getvalue())  # type: ignore[attr-defined]
    assert shown == [f"a{ESC}\n{RTL}\x9b\u200f\u2028\n", "a\\x1bc\n\\u202e\\x9b\\u200f\\u2028\n"]


class Out(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.isatty = lambda: terminal
