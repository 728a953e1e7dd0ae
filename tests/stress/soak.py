"""Watches the memory and the open files of two trainings: one of many steps, one on a large text.

Memory is what the process has to itself (RssAnon): pages of the encoded text, which is mapped, are the system's to take
back at any time. Reads /proc, so for Linux alone.
"""

import argparse
import contextlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
GROWTH_MB = 8  # between the second and the last fifth of a run: what allocators keep, not what a leak takes
LARGE_MB = 1024  # for a text of any size: what PyTorch and a small model take, encoding included
BLOCK = 1 << 24

CONFIG = """\
data: {{source: {text}, split: [{train}, {valid}, 0]}}
model: {{cell: {{kind: lstm, hidden: 32}}}}
train: {{batch_size: 8, bptt: 16, max_steps: {steps}, ema: 0.9, log_every: 10, eval_every: {every}, save_every: {every},
  sample_every: {every}, sample_length: 50}}
threads: 1
"""


def main() -> None:
    """Both trainings; an error where one outgrows its bound."""
    arguments = parse()
    with tempfile.TemporaryDirectory(prefix="charlm-soak-", dir=arguments.folder) as folder:
        faults = many_steps(Path(folder), arguments.steps) + large_text(Path(folder), arguments.gigabytes)
    if faults:
        sys.exit("\n".join(f"soak: {fault}" for fault in faults))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/stress soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000, metavar="N", help="updates of the first; default 10000")
    parser.add_argument("--gigabytes", type=float, default=5, metavar="G", help="text of the second; default 5")
    parser.add_argument("--quick", action="store_true", help="--steps 1000 --gigabytes 0.02: about half a minute")
    parser.add_argument("--folder", type=Path, help="where the disk has room for twice that; the system's own if none")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.steps, arguments.gigabytes = 1000, 0.02
    if arguments.steps < 100 or arguments.gigabytes <= 0:
        parser.error(f"--steps and --gigabytes: found {arguments.steps} and {arguments.gigabytes}; allowed: ≥ 100, > 0")
    return arguments


def many_steps(folder: Path, steps: int) -> list[str]:
    text = folder / "small.txt"
    write_text(text, 100_000)
    every = max(20, steps // 100)
    config = CONFIG.format(text=text, train=0.9, valid=0.1, steps=steps, every=every)
    readings = [(memory_mb, files) for memory_mb, files, training in watch(folder, config) if training]
    fifth = max(1, len(readings) // 5)
    parts = readings[fifth : 2 * fifth], readings[-fifth:]
    memory_mb = [statistics.median(memory_mb for memory_mb, _ in part) for part in parts]
    files = [min(files for _, files in part) for part in parts]  # without those of an evaluation or a save
    said = f"memory {memory_mb[0]:.1f} → {memory_mb[1]:.1f} MB, open files {files[0]} → {files[1]}"
    print(f"{steps:,} steps, {steps // every} times evaluated, sampled and saved: {said}")
    grew = memory_mb[1] > memory_mb[0] + GROWTH_MB or files[1] > files[0]
    return [f"it grew: {said}"] if grew else []


def large_text(folder: Path, gigabytes: float) -> list[str]:
    text = folder / "large.txt"
    size = int(gigabytes * 1e9)
    write_text(text, size)
    valid = 2e5 / size
    readings = watch(folder, CONFIG.format(text=text, train=1 - valid, valid=valid, steps=200, every=100))
    highest = max(memory_mb for memory_mb, _, _ in readings)
    print(f"{gigabytes:g} GB encoded and trained on for 200 steps: {highest:.0f} MB")
    return [f"{highest:.0f} MB for a text of {gigabytes:g} GB; at most {LARGE_MB}"] if highest > LARGE_MB else []


def write_text(path: Path, size: int) -> None:
    """Letters, one in eight a character of two bytes, no block like another."""
    choose = random.Random(0)
    block = "".join(choose.choices("etaoin shrdluéю\n", k=min(size, BLOCK)))
    left, number = size, 0
    with path.open("w", encoding="utf-8") as file:
        while left > 0:
            left -= file.write(f"{number}\n{block}"[:left])
            number += 1


Reading = tuple[float, int, bool]
"""MB of memory, number of open files, whether the training has begun."""


def watch(folder: Path, config: str) -> list[Reading]:
    """Train, and read memory and open files ten times a second."""
    file = folder / "config.yaml"
    file.write_text(config, encoding="utf-8")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        command = [sys.executable, "-m", "charlm", "train", "--config", str(file), "--run-dir", f"{place}/run"]
        own = os.environ | {"CHARLM_CACHE": str(cache_in(Path(place)))}
        said, readings = Path(place, "stderr"), []
        with said.open("w") as stream, subprocess.Popen(command, cwd=ROOT, stderr=stream, env=own) as run:
            process = Path(f"/proc/{run.pid}")
            while run.poll() is None:
                with contextlib.suppress(OSError, StopIteration):  # it has just ended
                    lines = (process / "status").read_text().splitlines()
                    kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
                    files = len(list((process / "fd").iterdir()))
                    readings.append((kilobytes / 1024, files, Path(place, "run/checkpoints").exists()))
                time.sleep(0.1)
        if run.returncode:
            sys.exit(f"soak: {' '.join(command)} ended with {run.returncode}:\n{said.read_text()}")
    return readings


def cache_in(folder: Path) -> Path:
    """For texts, on the same disk and gone with it; compiled kernels are copies of the user's."""
    from charlm.system.cache import cache_dir

    kernels, cache = cache_dir() / "kernels", folder / "cache"
    kernels.mkdir(parents=True, exist_ok=True)
    cache.mkdir()
    shutil.copytree(kernels, cache / "kernels")
    return cache


if __name__ == "__main__":
    main()
