"""Speed and memory of encoding generated texts, each in its own process with an empty cache."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from bench_kernels import growth_row
from bench_measure import Effort, Report, Row, figure

LETTERS = {
    "ASCII": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,;:!?'\n",
    "mixed": "etaoinshrdlu äöüßéèçñ жизньмрдоа αβγδεζη 人口手山水火木金土日月 אבגד नमस्ते 🙂🚀\n",
}
ROUNDS = 3
BLOCK_CHARACTERS = 1_000_000

# The process: argv[1] is the text; the environment names the cache.
CHILD = """
import json, sys, time
from pathlib import Path
import torch  # loaded by `charlm train` too
from charlm.config.schema import DataConfig
from charlm.data.corpus import load_corpus

def kilobytes(name):
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return int(next(line for line in lines if line.startswith(name)).split()[1])

try:
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
except OSError:
    pass
before = kilobytes("VmRSS:")
start_s = time.perf_counter()
corpus = load_corpus(DataConfig(source=sys.argv[1], split=(1.0, 0.0, 0.0)))
seconds = time.perf_counter() - start_s
after = kilobytes("VmHWM:")
memory = None if before is None or after is None else 1024 * (after - before)
print(json.dumps({"seconds": seconds, "memory_bytes": memory}))
"""


class NoMeasurement(Exception):
    """Why a text could not be encoded on this machine, in one line."""


def measure_encoding(report: Report, effort: Effort) -> None:
    """The section `encoding`."""
    size = 100_000_000 if effort.quick else 1_000_000_000
    report.table(
        f"encoding: a new text of {size / 1e6:,.0f} MB, UTF-8, level char",
        "in its own process with an empty cache, the text in the system's file cache; memory: peak above the imports; "
        "hit: the same text from the cache",
        ["MB/s", "memory MB", "hit MB/s"],
    )
    try:
        with folder_with_room(4 * size) as folder:
            texts = {name: write_text(folder / f"{name}.txt", name, size) for name in LETTERS}
            found: dict[str, list[dict[str, Any]]] = {name: [] for name in texts}
            for _ in range(min(effort.rounds, ROUNDS)):
                for name, path in texts.items():
                    found[name].append(encode(path, folder / "cache"))
    except NoMeasurement as error:
        report.note(f"skipped: {error}")
        return
    for name, rounds in found.items():
        figures = {
            "MB/s": figure((size / 1e6 / one["seconds"] for one in rounds), "MB/s"),
            "hit MB/s": figure((size / 1e6 / one["hit_seconds"] for one in rounds), "MB/s"),
        }
        if rounds[0]["memory_bytes"] is not None:
            figures["memory MB"] = figure((one["memory_bytes"] / 1e6 for one in rounds), "MB")
        report.add(Row("encoding", "cpu", name, {"MB": size // 10**6}, figures))


def measure_corpus_growth(report: Report, effort: Effort, columns: list[str]) -> None:
    """Rows of the section `scaling`: time against the size of the text."""
    unit = 8_000_000 if effort.quick else 32_000_000
    try:
        with folder_with_room(4 * 8 * unit) as folder:
            for name in LETTERS:
                texts = {n: write_text(folder / f"{n}.txt", name, n * unit) for n in (1, 2, 4, 8)}
                times: dict[str, dict[int, float]] = {str(n): {} for n in texts}
                for number in range(min(effort.rounds, ROUNDS if effort.quick else 2 * ROUNDS)):
                    for n, path in texts.items():
                        times[str(n)][number] = encode(path, folder / "cache", again=False)["seconds"]
                report.add(growth_row(f"encoding {name} over size", {"MB": unit // 10**6}, times, columns))
    except NoMeasurement as error:
        report.note(f"encoding skipped: {error}")


@contextmanager
def folder_with_room(needed: int) -> Iterator[Path]:
    """A temporary folder, always removed; NoMeasurement if its disk has too little room."""
    try:
        with tempfile.TemporaryDirectory(prefix="charlm-bench-") as name:
            free = shutil.disk_usage(name).free
            if free < needed:
                raise NoMeasurement(
                    f"{Path(name).parent}: {free / 1e9:.1f} GB free; {needed / 1e9:.1f} GB are needed; "
                    "name a folder with room in TMPDIR"
                )
            yield Path(name)
    except OSError as error:
        raise NoMeasurement(f"temporary files: {error.strerror}; name a folder with room in TMPDIR") from None


def write_text(path: Path, kind: str, size: int) -> Path:
    """A file of at most `size` bytes, and at most a character less: a million random characters, repeated."""
    letters = np.array(list(LETTERS[kind]))
    block = "".join(np.random.default_rng(1).choice(letters, BLOCK_CHARACTERS)).encode()
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
        file.write(block[: size % len(block)].decode(errors="ignore").encode())
    return path


def encode(path: Path, cache: Path, again: bool = True) -> dict[str, Any]:
    """Seconds and bytes of memory for the first encoding; with `again`, also the seconds of a cache hit."""
    try:
        found = run_child(path, cache)
        return {**found, "hit_seconds": run_child(path, cache)["seconds"]} if again else found
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def run_child(path: Path, cache: Path) -> dict[str, Any]:
    environment = os.environ | {"CHARLM_CACHE": str(cache)}
    command = [sys.executable, "-c", CHILD, str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        raise NoMeasurement(lines[-1] if lines else f"the encoding process ended with exit code {result.returncode}")
    return json.loads(result.stdout)
