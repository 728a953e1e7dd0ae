"""Help, version, and how soon they answer."""

import json
import re
import subprocess
import sys

import pytest

import charlm
from charlm.config.shipped import shipped_configs

COMMANDS = [
    "train", "sample", "write", "next", "classify", "eval", "look", "score", "export", "plan", "tune", "runs",
    "report", "doctor", "cells list", "cells show", "cells check",
    "config list", "config check", "config show", "config suggest", "config schema",
    "config options", "data list", "data info", "data fetch",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_is_called_so(cli, command):
    result = cli(*command.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: charlm {command} [OPTIONS]")
    examples = re.search(r"\n  Examples?:\n((?:    .*\n)+)", result.out)
    assert examples
    assert f"    charlm {command}" in examples.group(1)


@pytest.mark.parametrize("command", ["", "cells", "config", "data"])
def test_help_of_groups_names_their_commands(cli, command):
    result = cli(*command.split(), "--help")
    assert (result.code, result.err) == (0, "")
    listed = re.findall(r"^  (\w+)  ", result.out.split("Commands:\n")[1], re.MULTILINE)
    first = [name.removeprefix(command).split()[0] for name in COMMANDS if name.startswith(command)]
    assert listed == list(dict.fromkeys(first))


def test_examples_of_the_help_name_options_and_configs_that_exist(cli):
    for command in COMMANDS:
        text = cli(*command.split(), "--help").out
        examples = re.search(r"\n  Examples?:\n((?:    .*\n)+)", text)
        assert examples
        options = text.split("\nOptions:\n")[1]
        for option in re.findall(r"--[a-z-]+", examples.group(1)):
            assert option in options, (command, option)
        for config in re.findall(r"--config (\S+)", examples.group(1)):
            assert config in shipped_configs(), config


PROGRAM = """
import json, sys, charlm.cli
for words in json.loads(sys.argv[1]):
    sys.argv = ["charlm", *words]
    try:
        charlm.cli.main()
    except SystemExit as left:
        assert left.code == 0
    if words[0] == "runs" or "--help" in words:
        slow = {"torch", "numpy", "safetensors", "tensorboard", "yaml", "tqdm", "optuna", "matplotlib"}
        assert not slow & set(sys.modules), words
assert "torch" not in sys.modules
"""


def test_help_and_lists_do_not_wait_for_torch(tiny_config, trained_run):
    helps = [[*command.split(), "--help"] for command in ("", "config", "data", *COMMANDS)]
    commands = ["config check TINY", "config show TINY", "config options", "cells list", "cells show lstm", "data list"]
    others = [command.replace("TINY", str(tiny_config)).split() for command in commands]
    words = json.dumps([*helps, ["runs", str(trained_run)], *others])
    done = subprocess.run([sys.executable, "-c", PROGRAM, words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_version(cli):
    result = cli("--version")
    assert (result.code, result.out, result.err) == (0, f"{charlm.__version__}\n", "")


def test_no_command_shows_the_help(cli):
    result = cli()
    assert result.code == 2
    assert "Commands:" in result.out + result.err
