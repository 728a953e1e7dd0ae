"""Watches the memory and the open files of two trainings: one of many steps, one on a large text.

Memory is what the process has to itself (RssAnon): pages of the encoded text, which is mapped, are the system's to take
back at any time.
"""

import contextlib
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [
    pytest.mark.rare,
    pytest.mark.usefixtures("kernels"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

CONFIG = """\
data: {{source: {text}, split: [{train}, {valid}, 0]}}
model: {{cell: {{kind: lstm, hidden: 32}}}}
train: {{batch_size: 8, bptt: 16, max_steps: {steps}, ema: 0.9, log_every: 10, eval_every: {every}, save_every: {every},
  sample_every: {every}, sample_length: 50}}
threads: 1
"""


class Reading(NamedTuple):
    memory_mb: float
    files: int
    is_training: bool


@pytest.mark.parametrize("steps", [1000, 10_000])
def test_memory_and_open_files_do_not_grow_with_the_steps(tmp_path, steps):
    text = write_text(tmp_path, 100_000)
    every = max(20, steps // 100)
    readings = watch(tmp_path, CONFIG.format(text=text, train=0.9, valid=0.1, steps=steps, every=every))
    readings = [reading for reading in readings if reading.is_training]
    fifth = max(1, len(readings) // 5)
    before, after = readings[fifth : 2 * fifth], readings[-fifth:]
    memory_mb = [statistics.median(reading.memory_mb for reading in part) for part in (before, after)]
    assert memory_mb[1] < memory_mb[0] + 8  # what allocators keep, not what a leak takes
    files = [min(reading.files for reading in part) for part in (before, after)]  # without those of a save
    assert files[1] <= files[0]


@pytest.mark.parametrize("gigabytes", [0.02, 5])
def test_memory_does_not_grow_with_the_text(tmp_path, cache, gigabytes):
    size = int(gigabytes * 1e9)
    text, valid = write_text(tmp_path, size), 2e5 / size
    readings = watch(tmp_path, CONFIG.format(text=text, train=1 - valid, valid=valid, steps=200, every=100))
    text.unlink()
    shutil.rmtree(cache)  # pytest would keep both
    # What PyTorch and a small model take, encoding included.
    assert max(reading.memory_mb for reading in readings) < 1024


def write_text(folder: Path, size: int) -> Path:
    """Letters, one in eight a character of two bytes, no block like another."""
    block = "".join(random.Random(0).choices("etaoin shrdluéю\n", k=min(size, 1 << 24)))
    left, number = size, 0
    with (folder / "text.txt").open("w", encoding="utf-8") as file:
        while left > 0:
            left -= file.write(f"{number}\n{block}"[:left])
            number += 1
    return folder / "text.txt"


def watch(folder: Path, config: str) -> list[Reading]:
    """Train, and read memory and open files ten times a second."""
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    command = [sys.executable, "-m", "charlm", "train", "--config", str(folder / "config.yaml")]
    readings = []
    with subprocess.Popen([*command, "--run-dir", str(folder / "run")], stderr=subprocess.DEVNULL) as run:
        process = Path(f"/proc/{run.pid}")
        while run.poll() is None:
            with contextlib.suppress(OSError, StopIteration):  # it has just ended
                lines = (process / "status").read_text().splitlines()
                kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
                files = len(list((process / "fd").iterdir()))
                readings.append(Reading(kilobytes / 1024, files, (folder / "run/checkpoints").exists()))
            time.sleep(0.1)
    assert run.returncode == 0
    return readings
