"""Kills a run again and again, resumes it, and compares it with one that was left alone; run by scripts/stress torture.

Every second kill comes at a random moment, the others at a random step of the writing of a checkpoint: before, during
and after the file's data, before and after each flush and renaming.
"""

import argparse
import contextlib
import io
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tqdm import trange

ROOT = Path(__file__).parents[2]
STEPS_PER_KILL, SPARE_STEPS = 60, 600
LONGEST_STEPS = 100  # about so many until a random moment

# What the killed process does: argv is the number of the event to die at, or 0, and the arguments of charlm.
CHILD = """
import itertools, os, signal, sys
from pathlib import Path
from charlm.system import files

left = int(sys.argv[1])

def event():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def around(function):
    def wrapped(*arguments, **options):
        event()
        result = function(*arguments, **options)
        event()
        return result
    return wrapped

class InParts:
    def __init__(self, *arguments, **options):
        self.file = open(*arguments, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def __getattr__(self, name):
        return getattr(self.file, name)

    def write(self, data):
        for start, end in itertools.pairwise((0, 1, len(data) // 3, len(data) - 1, len(data))):
            self.file.write(data[start:end])
            self.file.flush()
            event()

files.open = InParts
os.fsync = around(os.fsync)
for name in ("replace", "unlink"):
    setattr(Path, name, around(getattr(Path, name)))

from charlm.cli import main
sys.argv = ["charlm", *sys.argv[2:]]
main()
"""
EVENTS = 60  # of one checkpoint, and a few of the next


def main() -> None:
    """Exit with an error if a run that was killed differs from one that was not."""
    arguments = parse()
    faults = kill_and_compare(arguments.kills, arguments.seed, arguments.unit)
    if faults:
        sys.exit("\n".join(f"torture: {fault}" for fault in faults))
    print(
        f"torture: {arguments.kills} kills, seed {arguments.seed}: "
        "weights, optimizer state and metrics equal those of a run without kills"
    )


def kill_and_compare(kills: int, seed: int, unit: str) -> list[str]:
    """Train without kills, then with `kills`; return the differences."""
    choose = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="charlm-torture-") as folder:
        config = write_config(Path(folder), unit, steps=STEPS_PER_KILL * kills + SPARE_STEPS)
        whole, parts = Path(folder, "whole"), Path(folder, "parts")
        train(["--config", str(config), "--run-dir", str(whole)])
        last = rows(whole)[-1]
        longest_s = LONGEST_STEPS * last["elapsed_s"] / last["step"]
        killed = torture(config, parts, kills, choose, longest_s)
        train([*how_to_begin(config, parts), "--run-dir", str(parts)])
        faults = compare(whole, parts)
    return faults if killed == kills else [*faults, f"the run ended after {killed} of {kills} kills"]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/stress torture", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, metavar="N", help="how often to kill; default 200")
    parser.add_argument("--quick", action="store_true", help="--kills 4: about half a minute")
    parser.add_argument("--unit", choices=("text", "line"), default="text", help="what the model reads; default text")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of the random moments; default 1")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.kills = 4
    if arguments.kills < 1:
        parser.error(f"--kills: found {arguments.kills}; allowed: integers ≥ 1")
    return arguments


def write_config(folder: Path, unit: str, steps: int) -> Path:
    text = folder / "text.txt"
    letters = random.Random(0)
    text.write_text("".join(letters.choice("etaoin shrdlu.\n") for _ in range(20_000)))
    reset_state = 0.1 if unit == "text" else 0  # a line begins with the zero state in any case
    config = folder / "config.yaml"
    config.write_text(
        f"data: {{source: {text}, unit: {unit}}}\n"
        "model: {cell: {kind: gru, hidden: 24}, dropout: {output: 0.2, state: 0.1}, zoneout: 0.1}\n"
        f"train: {{batch_size: 4, bptt: 8, max_steps: {steps}, ema: 0.9, reset_state: {reset_state}, "
        "log_every: 7, eval_every: 50, save_every: 20, sample_every: 40, sample_length: 20}\n"
        "threads: 1\n"
    )
    return config


def train(words: list[str]) -> None:
    """Train in this process, without kills."""
    from charlm.cli import main

    said, arguments = io.StringIO(), sys.argv
    sys.argv = ["charlm", "train", *words]
    try:
        with contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"torture: {' '.join(sys.argv)} ended with {end.code}:\n{said.getvalue()}")
    finally:
        sys.argv = arguments


def how_to_begin(config: Path, run: Path) -> list[str]:
    begun = any((run / "checkpoints").glob("*.safetensors"))
    return ["--resume"] if begun else ["--config", str(config)]


def torture(config: Path, run: Path, kills: int, choose: random.Random, longest_s: float) -> int:
    """Start, kill and resume `run`; how often it was killed before it ended."""
    for killed in trange(kills, unit="kill", leave=False, disable=None):
        words = ["train", *how_to_begin(config, run)]
        at_event = choose.randrange(1, EVENTS) if killed % 2 else 0
        command = [sys.executable, "-c", CHILD, str(at_event), *words, "--run-dir", str(run)]
        wait_s = choose.random() * longest_s
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if line.startswith("run ") and not at_event:
                    time.sleep(wait_s)
                    process.kill()
        if process.returncode == 0:
            return killed
        if process.returncode != -signal.SIGKILL:
            sys.exit(f"torture: after {killed} kills it ended with {process.returncode}:\n{''.join(said)}")
    return kills


def compare(whole: Path, parts: Path) -> list[str]:
    """What differs between two runs; times may."""
    from charlm.checkpoint import read_checkpoint

    faults = []
    ours, theirs = (read_checkpoint(run / "checkpoints/last.safetensors") for run in (whole, parts))
    for group in ("weights", "averaged", "optimizer", "carried"):
        one, other = getattr(ours, group), getattr(theirs, group)
        if one.keys() != other.keys():
            faults.append(f"{group}: other names")
        faults += [
            f"{group} {name}: other values" for name in one.keys() & other.keys() if not one[name].equal(other[name])
        ]
    if untimed(ours.progress) != untimed(theirs.progress):
        faults.append(f"progress: {untimed(ours.progress)} and {untimed(theirs.progress)}")
    ours, theirs = ([untimed(row) for row in rows(run)] for run in (whole, parts))
    if ours != theirs:
        faults.append(f"metrics: {len(ours)} and {len(theirs)} rows, or other values")
    left = [path.name for path in (parts / "checkpoints").iterdir() if path.name.startswith(".")]
    return faults + [f"left over: {name}" for name in left]


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def untimed(values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.endswith("_s")}


if __name__ == "__main__":
    main()
