"""Kills a run again and again, resumes it, and compares it with one that was left alone.

Every second kill comes at a random moment, the others before a random opening, renaming or removal of a checkpoint.
"""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runs import assert_same_checkpoint, rows, untimed
from tests.text import words_text

pytestmark = [pytest.mark.rare, pytest.mark.usefixtures("kernels")]

STEPS_PER_KILL, SPARE_STEPS = 60, 600
LONGEST_STEPS = 100  # about so many until a random moment
EVENTS = 30  # of two savings

# What the killed process does. Its arguments are the number of the event to die at, or 0, and those of charlm.
CHILD = """
import os, signal, sys
from charlm.cli import main

left = int(sys.argv[1])

def die(event, arguments):
    global left
    if event in ("open", "os.link", "os.rename", "os.remove") and "checkpoints" in str(arguments[0]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(die)
sys.argv = ["charlm", *sys.argv[2:]]
main()
"""


@pytest.mark.parametrize(("kills", "records"), [(4, ""), (200, ""), (50, "\n")])
def test_a_run_killed_again_and_again_ends_as_if_left_alone(tmp_path, kills, records):
    config, whole, parts = tmp_path / "config.yaml", tmp_path / "whole", tmp_path / "parts"
    (tmp_path / "text.txt").write_text(words_text(20_000), encoding="utf-8")
    reset_state = 0.1 if not records else 0  # a line begins with the zero state in any case
    config.write_text(
        f"data: {{source: {tmp_path / 'text.txt'}, records: {json.dumps(records)}}}\n"
        "model: {cell: {kind: gru, hidden: 24}, dropout: {output: 0.2, state: 0.1}, zoneout: 0.1}\n"
        f"train: {{batch_size: 4, bptt: 8, max_steps: {STEPS_PER_KILL * kills + SPARE_STEPS}, ema: 0.9, "
        f"reset_state: {reset_state}, log_every: 7, eval_every: 50, save_every: 20, sample_every: 40, "
        "sample_length: 20}\n"
        "threads: 1\n"
    )
    subprocess.run([*train(0, config, whole)], check=True, capture_output=True)
    last = rows(whole)[-1]
    longest_s = LONGEST_STEPS * last["elapsed_s"] / last["step"]
    choose = random.Random(1)
    for number in range(kills):
        event = choose.randrange(1, EVENTS) if number % 2 else 0
        printed = []
        with subprocess.Popen(train(event, config, parts), stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                printed.append(line)
                if line.startswith("run ") and not event:
                    time.sleep(choose.random() * longest_s)
                    process.kill()
        assert process.returncode == -signal.SIGKILL, "".join(printed)
    subprocess.run([*train(0, config, parts)], check=True, capture_output=True)
    assert_same_checkpoint(*(run / "checkpoints/last.safetensors" for run in (whole, parts)))
    assert untimed(whole) == untimed(parts)
    assert not [path for path in (parts / "checkpoints").iterdir() if path.name.startswith(".")]


def train(event: int, config: Path, run: Path) -> list[str]:
    """The command that begins the run or resumes it, and dies at an event."""
    begun = any((run / "checkpoints").glob("*.safetensors"))
    begin = ["--resume"] if begun else ["--config", str(config)]
    return [sys.executable, "-c", CHILD, str(event), "train", *begin, "--run-dir", str(run)]
