"""What a run has left on disk, as far as it can be read: no error, but a line for each thing that cannot be read."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from charlm.config import flatten, load_config
from charlm.errors import ConfigError, RunError
from charlm.runs import CONFIG, FOLDER, METRICS, SAMPLES, RunSummary, describe_run, find_runs, is_run, read_log, run_of
from charlm.system.arrays import Floats
from charlm.system.console import say
from charlm.system.files import read_file, reason_of

PLACES = ("step", "chars", "elapsed_s")
"""The columns of a row that say when it was written."""
VALUES = {"train": ("nats", "lr", "grad_norm", "chars_per_s"), "valid": ("nats",)}
"""The columns that are shown of the rows of a split."""
COMPARISON = "comparison.json"
"""In the folder of a comparison: its plan, its configs and, once all is trained, what the page shows of it."""
COMPARISON_BYTES = 10_000_000
"""Of COMPARISON at most; a config has some 2,000, the page's part 50,000."""
_NEEDED = "the folder of a run, a checkpoint of one, or a folder that holds runs"


@dataclass(frozen=True)
class ReportedRun:
    """A run as a report shows it."""

    about: RunSummary
    options: dict[str, Any]
    """Every option by its dotted path; empty if the config cannot be read."""
    splits: dict[str, dict[str, Floats]]
    """For "train" and "valid" the columns PLACES and VALUES, [rows] each, in the order of steps; nan for no number."""
    rollbacks: list[tuple[int, str]]
    """Step and description."""
    samples: list[dict[str, Any]]
    """step, text, and bits: one for each character, nan where it is not finite."""
    faults: list[str]
    """A line for each file that is missing or cannot be read."""


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


def read_run(path: Path) -> ReportedRun:
    """Read a run, which may be training, and say what cannot be read. Takes no lock and writes nothing.

    OSError if its folder cannot be read.
    """
    faults: list[str] = []
    about, options = describe_run(path), {}
    if about.step is None:
        faults.append(f"{FOLDER}: {about.state}.")
    rows = sorted(_read(path / METRICS, _metrics_row, faults), key=lambda row: row["step"])
    splits = {}
    for split, names in VALUES.items():
        own = [row for row in rows if row["split"] == split]
        columns = (*PLACES, *names)
        splits[split] = {name: np.array([row[name] for row in own], np.float64) for name in columns}
    rollbacks = [(row["step"], row["text"]) for row in rows if row["split"] == "rollback"]
    try:
        options = flatten(load_config(path / CONFIG))
    except ConfigError as error:
        faults.append(f"{CONFIG} cannot be read: {error.faults[0].removeprefix(f'{path / CONFIG}: ')}.")
    samples = _read(path / SAMPLES, _sample, faults)
    for fault in faults:
        say("note", f"{path}: {fault}")
    return ReportedRun(about, options, splits, rollbacks, samples, faults)


def read_comparison(folder: Path) -> dict[str, Any] | None:
    """What a comparison adds to the page of its runs, see `comparison_data`; None if none of it lies there."""
    try:
        page = json.loads(read_file(folder / COMPARISON, COMPARISON_BYTES))["page"]
        is_whole = 0 < len(page["rows"]) == len(page["runs"])
        return page if is_whole and all(isinstance(name, str) for name in page["runs"].values()) else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def _read(file: Path, parse: Callable[[Any], dict[str, Any]], faults: list[str]) -> list[dict[str, Any]]:
    """What the lines of a file hold; adds a fault if some cannot be read."""
    try:
        rows, damaged = read_log(file)
    except OSError as error:
        faults.append(f"{file.name} cannot be read ({reason_of(error)}).")
        return []
    parsed = []
    for row in rows:
        try:
            parsed.append(parse(row))
        except (ValueError, TypeError, LookupError, OverflowError):
            damaged += 1
    if damaged:
        lines = len(parsed) + damaged
        faults.append(f"{file.name}: {damaged:,} of {lines:,} lines cannot be read and are left out.")
    return parsed


def _metrics_row(row: Any) -> dict[str, Any]:
    step, split = int(row["step"]), row["split"]
    if split == "rollback":
        text = f"rolled back from update {row['diverged_step']}: {row['fault']}; "
        return {"step": step, "split": split, "text": f"{text}learning rate × {row['lr_factor']} from here"}
    places = {name: float(row[name]) for name in PLACES}
    return places | {"step": step, "split": split} | {name: _number(row[name]) for name in VALUES[split]}


def _sample(row: Any) -> dict[str, Any]:
    text, bits = str(row["text"]), [*map(_number, row["bits"])]
    if len(bits) != len(text):
        raise ValueError
    return {"step": int(row["step"]), "text": text, "bits": bits}


def _number(value: Any) -> float:
    """nan for null, which stands for a number that is not finite."""
    return math.nan if value is None else float(value)


def short_names(paths: list[Path]) -> list[str]:
    """How the runs are called: by their folder, or by their path where several folders share a name."""
    names = [path.absolute().name for path in paths]
    return [name if names.count(name) == 1 else str(path) for name, path in zip(names, paths, strict=True)]
