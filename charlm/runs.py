"""Runs on disk: the names of their files, and what the header of a checkpoint says. Imports no torch."""

import contextlib
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from charlm.errors import CheckpointError, DamagedCheckpointError, RunError
from charlm.scored import ScoredText
from charlm.system.files import is_text, lfs_fault, read_file, reason_of, regular
from charlm.system.formatting import model_in_words
from charlm.system.lock import is_locked
from charlm.system.number import LARGEST, in_range
from charlm.version import __version__

FORMAT = "charlm checkpoint"
VERSION = 8
FOLDER = "checkpoints"
LAST, BEST = "last.safetensors", "best.safetensors"
CONFIG, OWN_CONFIG = "config.yaml", "own-config.yaml"
"""The run's, and what the user had in its place before the run."""
TEXT = "text.txt"
"""The text of a run that read it from a pipe."""
METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"
CHARTS = "train", "valid"
INTERVALS = ("train.log_every", "train.eval_every", "train.save_every", "train.sample_every")
"""Options that follow from the speed of the machine and change nothing that is learned: no difference of runs."""
LOG_BYTES = 500_000_000
"""The largest METRICS and SAMPLES that are read: about two million rows."""
HEADER_BYTES = 4_000_000
"""The largest header of a checkpoint: a usual one has 10,000, and JSON takes up to 30 times its size in memory."""


@dataclass(frozen=True)
class RunSummary:
    """What the newest readable checkpoint of a run says; None for what it does not say."""

    path: Path
    state: str
    """in use | finished | resumable | damaged | other version | no checkpoint"""
    written_s: float
    """When the run was last written, in seconds since 1970."""
    kind: str | None = None
    """Of a cell in a Python file, the name of its class."""
    layers: int | None = None
    hidden: int | None = None
    members: int | None = None
    parameters: int | None = None
    step: int | None = None
    best_nats: float | None = None
    """Score of the best checkpoint, nats per character."""
    scored: ScoredText | None = None
    """What the score is of."""
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def model(self) -> str | None:
        """In words."""
        if self.kind and self.layers and self.hidden and self.members:
            return model_in_words(self.kind, self.layers, self.hidden, self.members)
        return None


def parse_progress(text: str) -> dict[str, Any]:
    """The progress in a header; ValueError for what charlm does not write, such as numbers that are not finite."""
    progress = json.loads(text)
    if not isinstance(progress, dict):
        raise ValueError(f"progress: found {type(progress).__name__}; allowed: a table")
    for name, value in progress.items():
        if type(value) not in _PROGRESS.get(name, (type(value),)):
            raise ValueError(f"progress: {name}: found {type(value).__name__}")
        if isinstance(value, int | float) and not 0 <= value < 2**63:
            raise ValueError(f"progress: {name}: found {str(value)[:20]}; allowed: 0 or more, below 2^63")
    return progress


_PROGRESS = {
    "step": (int,),
    "symbols": (int,),
    "earlier_symbols": (int,),
    "earlier_texts": (list,),
    "scored": (dict,),
    "best_nats": (int, float, NoneType),
    "best_step": (int,),
    "rollbacks": (int,),
    "stop_reason": (str,),
}
"""What is read of a run's progress without resuming it, and its types."""


def read_header(path: Path) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The config, the progress and the number of parameters from a checkpoint's header; the content is not verified.

    DamagedCheckpointError for a damaged file, or one that charlm did not write; CheckpointError for another version.
    """
    try:
        with open(path, "rb", opener=regular) as file:
            size = int.from_bytes(file.read(8), "little")
            if size > HEADER_BYTES:
                raise ValueError(f"a header of {size} bytes")
            tensors = json.loads(file.read(size))
            file_bytes = os.fstat(file.fileno()).st_size
        header = tensors.pop("__metadata__")
        check_format(path, header)
        end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        if file_bytes != 8 + size + end:
            raise ValueError(f"{file_bytes} bytes instead of {8 + size + end}")
        parameters, progress = int(header["parameters"]), parse_progress(header["progress"])
        if "step" not in progress or not 0 < parameters < 2**63:
            raise ValueError("no step, or an impossible number of parameters")
        return json.loads(header["config"]), progress, parameters
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise unreadable_checkpoint(path, error) from None


def unreadable_checkpoint(path: Path, error: Exception) -> DamagedCheckpointError:
    """The error for a file that cannot be read as a checkpoint."""
    head = b""
    with contextlib.suppress(OSError), open(path, "rb", opener=regular) as file:
        head = file.read(200)
    if fault := lfs_fault(path, head):
        return DamagedCheckpointError(fault)
    if head and is_text(head):
        train = f"`charlm train {shlex.quote(str(path))}` makes one"
        return DamagedCheckpointError(f"{path}: found a text; allowed: a run's folder or a checkpoint; {train}")
    reason = " ".join(str(error).split())
    return DamagedCheckpointError(f"{path}: damaged, or not a checkpoint ({reason}); use another one of the run")


def check_format(path: Path, header: Mapping[str, str]) -> None:
    """DamagedCheckpointError for a safetensors file of another program, CheckpointError for another version."""
    if header.get("format") != FORMAT:
        raise DamagedCheckpointError(
            f"{path}: a safetensors file, but not a charlm checkpoint; allowed: a checkpoint that charlm wrote"
        )
    check_version(path, header)


def check_version(path: Path, header: Mapping[str, str]) -> None:
    """CheckpointError for a file that was written in another version of the format."""
    if header.get("version") != str(VERSION):
        found = f"found format version {header.get('version')}, of charlm {header.get('charlm', '(not said)')}"
        allowed = f"allowed: version {VERSION}, of charlm {__version__}; use the charlm that wrote it, or train anew"
        raise CheckpointError(f"{path}: {found}; {allowed}")


def read_log(file: Path) -> tuple[list[Any], int]:
    """The rows of METRICS or SAMPLES that can be read, and how many others there are; OSError if it cannot be read.

    An incomplete last line does not count: it is being written.
    """
    rows, damaged = [], 0
    for line in read_file(file, LOG_BYTES).splitlines(keepends=True):
        if line.endswith(b"\n"):
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                damaged += 1
    return rows, damaged


def find_checkpoint(path: Path, option: str = "") -> Path:
    """`path` if it is a file; for the folder of a run, its best checkpoint, else its last one. Or CheckpointError."""
    where = f"{option} {path}" if option else f"{path}"
    try:
        fault = "" if path.exists() else "no such file or folder"
    except OSError as error:
        fault = reason_of(error)
    if fault:
        raise CheckpointError(f"{where}: {fault}; allowed: a run's folder or a checkpoint in its {FOLDER}/")
    if not path.is_dir():
        return path
    path = run_of(path)
    for name in (BEST, LAST):
        if (path / FOLDER / name).is_file():
            return path / FOLDER / name
    raise CheckpointError(f"{where}: no checkpoint in {path / FOLDER}; allowed: the folder of a run, or a checkpoint")


def run_of(folder: Path) -> Path:
    """The run whose checkpoints the folder holds; else the folder itself."""
    return folder.parent if folder.name == FOLDER and not (folder / FOLDER).exists() else folder


def has_checkpoint(run_dir: Path) -> bool:
    """Whether there is something to resume from."""
    return any((run_dir / FOLDER).glob("*.safetensors"))


def check_new(run_dir: Path) -> None:
    """RunError if a new run may not write to this folder. A run that has no checkpoint yet does not count."""
    if has_checkpoint(run_dir):
        raise RunError(f"{run_dir}: already holds a run; allowed: --resume to continue it, or another --run-dir")
    for file in (run_dir / METRICS, run_dir / SAMPLES):
        if file.exists() and file.stat().st_size:
            raise RunError(f"{file}: exists, and the run would write to it; allowed: another --run-dir")


def check_resumable(run_dir: Path) -> None:
    """CheckpointError unless the folder can hold a run to resume."""
    if not (run_dir / FOLDER).is_dir():
        found = f"no {FOLDER}/ to resume from" if run_dir.exists() else "no such file or folder"
        raise CheckpointError(f"{run_dir}: {found}; allowed: the folder of a run")


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    with contextlib.suppress(OSError):  # a folder that cannot be read
        return (folder / FOLDER).is_dir() and ((folder / CONFIG).is_file() or has_checkpoint(folder))
    return False


def find_runs(folder: Path, unreadable: Callable[[OSError], object] | None = None) -> Iterator[Path]:
    """Yield the runs in a folder: the folder itself, or those below it, in no particular order.

    A run may be a link; other links and hidden folders are skipped. unreadable: called for folders that cannot be read.
    """
    if is_run(folder):
        yield folder
        return
    for place, names, _ in os.walk(folder, onerror=unreadable):
        below = [Path(place, name) for name in names if not name.startswith(".")]
        runs = [path for path in below if is_run(path)]
        yield from runs
        names[:] = [path.name for path in below if path not in runs]


def describe_run(folder: Path) -> RunSummary:
    """The state of a run; takes no lock and writes nothing. OSError if the folder cannot be read."""
    best_nats = None
    with contextlib.suppress(CheckpointError):
        _, best, _ = read_header(folder / FOLDER / BEST)  # `last` may be older
        best_nats = best.get("best_nats")
    files = sorted((folder / FOLDER).glob("*.safetensors"), key=_written_s, reverse=True)
    in_use = is_locked(folder)
    state = "damaged" if files else "no checkpoint"
    # `last` first, because --resume reads it first; then the newest.
    for file in sorted(files, key=lambda file: file.name != LAST):
        try:
            config, progress, parameters = read_header(file)
            model = config["model"]
            usable = "in use"
            if not in_use:
                usable = "finished" if progress["stop_reason"] else "resumable"
            return RunSummary(
                path=folder,
                state=usable,
                written_s=_written_s(file),
                kind=model["cell"]["kind"].rpartition(":")[2],
                layers=in_range("layers", model["layers"], 1, LARGEST),
                hidden=in_range("hidden", model["cell"]["hidden"], 1, LARGEST),
                members=in_range("members", model["members"], 1, LARGEST),
                parameters=parameters,
                step=progress["step"],
                best_nats=best_nats,
                scored=ScoredText.from_json(progress.get("scored")),
                config=config,
            )
        except (DamagedCheckpointError, KeyError, TypeError, AttributeError, ValueError):
            continue
        except CheckpointError:
            state = "other version"
    return RunSummary(folder, "in use" if in_use else state, _written_s(files[0] if files else folder))


def _written_s(path: Path) -> float:
    with contextlib.suppress(OSError):  # replaced or removed since it was listed
        return path.stat().st_mtime
    return 0.0
