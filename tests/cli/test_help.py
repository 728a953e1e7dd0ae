"""Help, version, and what answers before torch is imported, which takes seconds."""

import json
import re
import subprocess
import sys

import typer.main

import charlm
from charlm.cli import app
from charlm.config import shipped_configs
from charlm.export import FORMATS

GROUPS = typer.main.get_command(app).commands
COMMANDS = [f"{name} {below}".strip() for name in GROUPS for below in getattr(GROUPS[name], "commands", [""])]


def test_the_help_of_every_command_has_examples_that_can_be_run(cli):
    assert {"train", "sample", "cells show"} < {*COMMANDS}
    for command in COMMANDS:
        result = cli(*command.split(), "--help")
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith(f"Usage: charlm {command} [OPTIONS]")
        examples = re.search(r"\n  Examples?:\n((?:    .*\n)+)", result.out)
        assert examples
        assert f"    charlm {command}" in examples[1]
        options = result.out.split("\nOptions:\n")[1]
        assert [option for option in re.findall(r"--[a-z-]+", examples[1]) if option not in options] == [], command
        assert set(re.findall(r"--config (\S+)", examples[1])) <= {*shipped_configs()}, command
    assert "|".join(FORMATS) in cli("export", "--help").out


def test_version(cli):
    assert cli("--version").out == f"{charlm.__version__}\n"


QUICK = ["runs run", "--help", "config --help", "data --help", *(f"{command} --help" for command in COMMANDS)]
LISTS = ["config show tiny.yaml", "cells list", "cells show lstm", "data list"]
MISSING = [
    "sample gone", "look run --compare gone", "export gone --to onnx --out x", "score gone -", "report gone",
    "runs gone", "data info gone", "look run --file gone", "classify run gone --labels a", "train gone/*.txt",
    "config show gone.yaml",
    "train --config lstm there --set data.valid_source=gone", "train --config lstm there --init-from gone",
    "train --resume --run-dir gone", "plan --config lstm --set data.source=gone", "config suggest gone",
]  # fmt: skip
PROGRAM = """
import contextlib, io, json, sys

sys.modules["torch"] = None  # cannot be imported
import charlm
charlm.load, charlm.train, charlm.Run
slow = {"numpy", "yaml", "typer", "pydantic"} & set(sys.modules)
from charlm.cli import main

def run(words):
    sys.argv = ["charlm", *words.split()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main()
        except SystemExit as end:
            return [end.code or 0, said.getvalue()]

quick, others = json.load(sys.stdin)
found = [run(words) for words in quick]
slow |= {"numpy", "safetensors", "tensorboard", "yaml", "tqdm"} & set(sys.modules)
print(json.dumps([sorted(slow), found + [run(words) for words in others]]))
"""


def test_what_does_not_wait_for_torch(trained_run, tiny_config, tmp_path):
    """Help and lists, and every path that is missing: none is reported only after a long computation."""
    (tmp_path / "run").symlink_to(trained_run)
    (tmp_path / "there").write_text("text")
    before = sorted(tmp_path.iterdir())
    asked = json.dumps([QUICK, LISTS + MISSING])
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=asked, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    slow, found = json.loads(done.stdout)
    assert slow == []
    answers = dict(zip(QUICK + LISTS + MISSING, found, strict=True))
    assert [words for words in QUICK + LISTS if answers[words] != [0, ""]] == []
    for words in MISSING:
        code, error = answers[words]
        assert (code, error.count("\n")) == (1, 1), (words, error)
        assert re.match("error: .*gone.*: (found )?no (such )?(file|folder)", error), (words, error)
    assert sorted(tmp_path.iterdir()) == before
