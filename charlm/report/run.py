"""What a run has left on disk, as far as it can be read: no error, but a line for each thing that is missing."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.config import flatten, load_config
from charlm.errors import ConfigError, RunError
from charlm.runs import CONFIG, FOLDER, METRICS, SAMPLES, RunSummary, describe_run, find_runs, is_run, run_of
from charlm.system.formatting import to_json

Floats = npt.NDArray[np.float64]

PLACES = ("step", "chars", "elapsed_s")
"""The columns of a row that say when it was written."""
VALUES = {"train": ("nats", "lr", "grad_norm", "chars_per_s"), "valid": ("nats",)}
"""The columns that are shown of the rows of a split."""
_NEEDED = "the folder of a run, a checkpoint of one, or a folder that holds runs"


@dataclass(frozen=True)
class RunRecord:
    """A run as a report shows it."""

    path: Path
    about: RunSummary
    options: dict[str, Any] = field(default_factory=dict)
    """Every option by its dotted path; empty if the config cannot be read."""
    splits: dict[str, dict[str, Floats]] = field(default_factory=dict)
    """For "train" and "valid" the columns PLACES and VALUES, [rows] each, in the order of steps; nan for no number."""
    events: list[tuple[int, str]] = field(default_factory=list)
    """Step and text of each row that is no score, such as a rollback."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """step, text, and bits: a number or None for each character, or None for all."""
    faults: list[str] = field(default_factory=list)
    """A line for each thing that is missing or cannot be read."""

    @property
    def is_empty(self) -> bool:
        return not any(len(columns["step"]) for columns in self.splits.values())


def runs_in(path: Path) -> list[Path]:
    """The run that a path names, or the runs in a folder, by name; RunError if there are none."""
    if path.is_file() and path.suffix == ".safetensors" and path.absolute().parent.name == FOLDER:
        path = path.parent.parent
    elif path.is_dir():
        path = run_of(path)
    if not path.is_dir():
        fault = "is no checkpoint in the folder of a run" if path.exists() else "no such file or folder"
        raise RunError(f"{path}: {fault}; allowed: {_NEEDED}")
    if is_run(path) or (path / METRICS).is_file():
        return [path]
    if runs := sorted(find_runs(path)):
        return runs
    raise RunError(f"{path}: holds no run; allowed: {_NEEDED}")


def read_run(path: Path) -> RunRecord:
    """Read a run, which may be training: takes no lock and writes nothing. OSError if its folder cannot be read."""
    faults: list[str] = []
    about, options = describe_run(path), {}
    if about.state == "damaged":
        faults.append("No checkpoint can be read.")
    if about.state == "no checkpoint":
        faults.append("It has no checkpoint.")
    splits, events = _metrics(path / METRICS, faults)
    try:
        options = flatten(load_config(path / CONFIG))
    except ConfigError as error:
        faults.append(f"{CONFIG} cannot be read: {error.faults[0].removeprefix(f'{path / CONFIG}: ')}.")
    record = RunRecord(path, about, options, splits, events, _samples(path / SAMPLES, faults), faults)
    if record.is_empty and not any(METRICS in fault for fault in faults):
        faults.append(f"{METRICS} has no rows yet.")
    if not record.is_empty and not len(splits["valid"]["step"]):
        faults.append("No validation scores yet, or no validation split.")
    return record


def _lines(file: Path, faults: list[str]) -> list[dict[str, Any]]:
    """The lines of a file that are JSON objects with a step. An incomplete last one is being written: no fault."""
    try:
        lines = file.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        faults.append(f"It has no {file.name}.")
        return []
    except OSError as error:
        faults.append(f"{file.name} cannot be read ({error.strerror}).")
        return []
    whole = [line for line in lines if line.endswith(b"\n")]
    rows = [row for row in map(_row, whole) if row is not None]
    if damaged := len(whole) - len(rows):
        faults.append(f"{file.name}: {damaged:,} of {len(whole):,} lines cannot be read and are left out.")
    return rows


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    known = isinstance(row, dict) and type(row.get("step")) is int and 0 <= row["step"] < 2**53
    return row if known else None


def _metrics(file: Path, faults: list[str]) -> tuple[dict[str, dict[str, Floats]], list[tuple[int, str]]]:
    rows = sorted(_lines(file, faults), key=lambda row: row["step"])
    splits: dict[str, dict[str, Floats]] = {}
    for split, names in VALUES.items():
        split_rows = [row for row in rows if row.get("split") == split]
        table = {name: np.array([_number(row.get(name)) for row in split_rows]) for name in (*PLACES, *names)}
        placed = np.all([np.isfinite(table[name]) for name in PLACES], axis=0)
        splits[split] = {name: column[placed] for name, column in table.items()}
    events = []
    for row in rows:
        if row.get("split") == "rollback":
            text = f"rolled back from step {row.get('diverged_step')}: {row.get('fault')}; "
            events.append((row["step"], f"{text}learning rate × {row.get('lr_factor')} from here"))
        elif row.get("split") not in [*VALUES]:  # it may be unhashable
            events.append((row["step"], to_json({name: value for name, value in row.items() if name != "step"})))
    return splits, events


def _number(value: Any) -> float:
    """nan for what is no number, or too large for the page, whose numbers are of single precision."""
    return float(value) if type(value) in (int, float) and abs(value) < 1e38 else math.nan


def _samples(file: Path, faults: list[str]) -> list[dict[str, Any]]:
    if not file.exists():
        faults.append("It kept no samples.")
        return []
    by_step = {}  # a step can stand twice only where a log was damaged: then the later one counts
    for row in _lines(file, faults):
        step, text, bits = row["step"], row.get("text"), row.get("bits")
        if isinstance(text, str):
            numbers = [_number(each) for each in bits] if isinstance(bits, list) and len(bits) == len(text) else None
            by_step[step] = {"step": step, "text": text, "bits": numbers}
    return [by_step[step] for step in sorted(by_step)]


def short_names(paths: list[Path]) -> list[str]:
    """How the runs are called: by their folder, with as many folders above it as tell them apart."""
    runs = [path.absolute().parts for path in paths]

    def name(parts: tuple[str, ...]) -> str:
        lengths = (n for n in range(1, len(parts)) if sum(other[-n:] == parts[-n:] for other in runs) == 1)
        return "/".join(parts[-next(lengths, len(parts)) :])

    return [name(parts) for parts in runs]
