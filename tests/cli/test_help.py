"""Help, version, and what answers before torch is imported, which takes seconds."""

import json
import re
import subprocess
import sys

import typer.main

import charlm
from charlm.cli import app
from charlm.config.shipped import shipped_configs

COMMANDS = [
    "train", "sample", "next", "classify", "eval", "look", "score", "export", "plan", "compare",
    "runs", "report", "doctor", "cells list", "cells show", "cells check",
    "config list", "config show", "config suggest", "config schema",
    "data list", "data info", "data fetch",
]  # fmt: skip


def test_the_help_of_every_command_has_examples_that_can_be_run(cli):
    groups = typer.main.get_command(app).commands
    found = [f"{name} {below}".strip() for name, group in groups.items() for below in getattr(group, "commands", [""])]
    assert found == COMMANDS
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


def test_version_and_no_command(cli):
    result = cli("--version")
    assert (result.code, result.out, result.err) == (0, f"{charlm.__version__}\n", "")
    result = cli()
    assert result.code == 2
    assert "Commands:" in result.out + result.err


RUN, FOLDER = (
    "no such file or folder; allowed: a run's folder or a checkpoint in its checkpoints/",
    "no such file or folder; a source",
)
FILE = "no such file or folder; allowed: a text file, or - for stdin"
MISSING = {
    "sample gone": RUN,
    "next gone": RUN,
    "eval gone": RUN,
    "look gone": RUN,
    "look run --compare gone": f"--compare gone: {RUN}",
    "export gone --to onnx --out x": RUN,
    "score gone -": RUN,
    "classify gone - --labels a": RUN,
    "train --config lstm there --init-from gone": f"--init-from gone: {RUN}",
    "train --resume --run-dir gone": "no such file or folder; allowed: the folder of a run",
    "train gone": FOLDER,
    "train there --set data.valid_source=gone": FOLDER,
    "train gone/*.txt": "no file matches",
    "train --config lstm gone": FOLDER,
    "train --config lstm there --set data.valid_source=gone": FOLDER,
    "train --config gone.yaml": "found no such file; allowed: a YAML file, or a name from `charlm config list`",
    "config show gone.yaml": "found no such file",
    "plan gone": FOLDER,
    "config suggest gone": FOLDER,
    "plan --config lstm --set data.source=gone": FOLDER,
    "plan --config gone.yaml": "found no such file",
    "eval run --file gone": FOLDER,
    "look run --file gone": FOLDER,
    "score run gone": FOLDER,
    "classify run gone --labels a": FOLDER,
    "data info gone": FOLDER,
    "runs gone": "no such folder",
    "report gone": "gone: no such file or folder; ",
}
CALLS = {"load('gone')": RUN, "train('gone')": FOLDER, "train(config='lstm', text='gone')": FOLDER}
PROGRAM = """
import contextlib, io, json, sys

sys.modules["torch"] = None  # cannot be imported
import charlm
from charlm.cli import main

def run(words):
    sys.argv = ["charlm", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            main()
        except SystemExit as end:
            return [end.code or 0, said.getvalue()]

quick, others, calls = json.load(sys.stdin)
found = [run(words) for words in quick]
slow = sorted({"numpy", "safetensors", "tensorboard", "yaml", "tqdm"} & set(sys.modules))
found += [run(words) for words in others]
for call in calls:
    try:
        eval(f"charlm.{call}")
    except Exception as error:
        found.append([type(error).__name__, str(error)])
print(json.dumps([slow, found]))
"""


def test_what_does_not_wait_for_torch(trained_run, tiny_config, tmp_path):
    """Help and lists, and every path that is missing: none is reported only after a long computation."""
    (tmp_path / "run").symlink_to(trained_run)
    (tmp_path / "there").write_text("text")
    (tmp_path / "texts/part").mkdir(parents=True)
    for name in ("texts/there", "texts/part/there"):
        (tmp_path / name).write_text("text")
    before = sorted(tmp_path.iterdir())
    quick = ["runs run", "--help", "config --help", "data --help", *(f"{command} --help" for command in COMMANDS)]
    lists = [
        "config show tiny.yaml", "cells list", "cells show lstm",
        "data list",
    ]  # fmt: skip
    asked = [[words.split() for words in quick], [words.split() for words in (*lists, *MISSING)], [*CALLS]]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps(asked), cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    slow, found = json.loads(done.stdout)
    assert slow == []
    succeeding = len(quick) + len(lists)
    assert found[:succeeding] == [[0, ""]] * succeeding
    kinds = [1] * len(MISSING) + ["CheckpointError", "DataError", "DataError"]
    faults = MISSING | CALLS
    for what, (kind, said), expected in zip(faults, found[succeeding:], kinds, strict=True):
        assert (kind, faults[what] in said, said.count("\n")) == (expected, True, int(what in MISSING)), (what, said)
    assert sorted(tmp_path.iterdir()) == before
