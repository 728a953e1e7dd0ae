"""Every command reports a missing path before it imports torch, which takes seconds, or measures anything."""

import json
import subprocess
import sys

RUN, FOLDER = (
    "no such file or folder; allowed: a run's folder or a checkpoint in its checkpoints/",
    "no such file or folder; a source",
)
FILE = "no such file or folder; allowed: a text file, or - for stdin"
COMMANDS = {
    "sample gone": RUN,
    "next gone": RUN,
    "eval gone": RUN,
    "look gone": RUN,
    "look run --compare gone": f"--compare gone: {RUN}",
    "export gone --to torch --out x": RUN,
    "score gone -": RUN,
    "classify gone -": RUN,
    "write gone": RUN,
    "train --config lstm there --init-from gone": f"--init-from gone: {RUN}",
    "train --resume --run-dir gone": "no such file or folder; allowed: the folder of a run",
    "train gone": FOLDER,
    "train there --set data.valid_source=gone": FOLDER,
    "train texts --run-dir texts/part": "texts: has files in texts/part, the folder of the run; ",
    "train --config lstm texts --run-dir texts/part": "texts: has files in texts/part, the folder of the run; ",
    "train there --set data.test_source=texts --run-dir texts/part": "texts: has files in texts/part, the folder of ",
    "train gone/*.txt": "no file matches",
    "train --config lstm gone": FOLDER,
    "train --config lstm there --set data.valid_source=gone": FOLDER,
    "train --config gone.yaml": "found no such file; allowed: a YAML file, or a name from `charlm config list`",
    "config check gone.yaml": "found no such file",
    "config show gone.yaml": "found no such file",
    "tune --config gone.yaml --hours 1": "found no such file",
    "plan gone": FOLDER,
    "config suggest gone": FOLDER,
    "plan --config lstm --set data.source=gone": FOLDER,
    "plan --config gone.yaml": "found no such file",
    "tune --config lstm --set data.source=gone --hours 1": FOLDER,
    "tune --study gone --hours 1": "holds no study; allowed: the folder of one; --config and --hours begin one",
    "eval run --file gone": FOLDER,
    "look run --file gone": FOLDER,
    "score run gone": FOLDER,
    "score run gone --lines": FILE,
    "classify run gone": FILE,
    "sample run --prompt-file gone": FILE,
    "data info gone": FOLDER,
    "runs gone": "no such folder",
    "report gone": "gone: no such file or folder; ",
}
CALLS = {"load('gone')": RUN, "train('gone')": FOLDER, "train(config='lstm', text='gone')": FOLDER}
PROGRAM = """
import contextlib, io, json, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise AssertionError("torch is imported")

sys.meta_path.insert(0, NoTorch())
import charlm
from charlm.cli import main

commands, calls = json.load(sys.stdin)
found = []
for words in commands:
    sys.argv = ["charlm", *words]
    with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.suppress(SystemExit):
        try:
            main()
        except AssertionError as error:
            print(error, file=sys.stderr)
    found.append(said.getvalue())
for call in calls:
    try:
        eval(f"charlm.{call}")
    except Exception as error:
        found.append(f"{type(error).__name__}: {error}\\n")
print(json.dumps(found))
"""


def test_without_torch(trained_run, tmp_path):
    (tmp_path / "run").symlink_to(trained_run)
    (tmp_path / "there").write_text("text")
    (tmp_path / "texts/part").mkdir(parents=True)
    for name in ("texts/there", "texts/part/there"):
        (tmp_path / name).write_text("text")
    asked = json.dumps([[words.split() for words in COMMANDS], list(CALLS)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=asked, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    errors = ["error: "] * len(COMMANDS) + ["CheckpointError: ", "DataError: ", "DataError: "]
    faults = COMMANDS | CALLS
    for what, said, error in zip(faults, found, errors, strict=True):
        assert said.startswith(error), (what, said)
        assert faults[what] in said, (what, said)
        assert said.count("\n") == 1, (what, said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "texts", "there"]
