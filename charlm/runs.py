"""Runs on disk: the names of their files, and what the header of a checkpoint says.

Imports no torch and reads no tensors, so listing many runs is fast. See `checkpoint` for the format.
"""

import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any

from charlm.errors import CheckpointError, DamagedCheckpointError
from charlm.system.lock import lock_holder

FORMAT = "charlm checkpoint"
VERSION = 2
FOLDER = "checkpoints"
LAST, BEST = "last.safetensors", "best.safetensors"
CONFIG = "config.yaml"
METRICS, SAMPLES = "metrics.jsonl", "samples.jsonl"
CHARTS = "train", "valid"
OWN_FILES = (CONFIG, METRICS, SAMPLES)
"""What charlm writes beside the folders of a run."""

_DEPTH = 6
"""How many folders deep `find_runs` looks."""
_HEADER_BYTES = 100_000_000
"""The largest header that safetensors allows."""


@dataclass(frozen=True)
class RunSummary:
    """What the newest readable checkpoint of a run says; None for what it does not say."""

    path: Path
    state: str
    """in use | finished | resumable | damaged | no checkpoint"""
    written_s: float
    """When the run was last written, in seconds since 1970."""
    used_by: str | None = None
    """The process that holds the run's lock."""
    kind: str | None = None
    """Of a cell in a Python file, the name of its class."""
    layers: int | None = None
    hidden: int | None = None
    members: int | None = None
    """Networks that predict together."""
    parameters: int | None = None
    step: int | None = None
    best_nats: float | None = None
    """Lowest validation score so far, nats per character."""
    corpus_sha256: str | None = None
    """Of the text."""

    @property
    def several(self) -> str:
        """For people: ", 3 members"; "" for a model of one."""
        return f", {self.members} members" if self.members and self.members > 1 else ""


@dataclass(frozen=True)
class Header:
    """The header of a checkpoint file."""

    version: str
    config: dict[str, Any]
    progress: dict[str, Any]
    parameters: int
    """Number of weights."""


def read_header(path: Path) -> Header:
    """The header of a checkpoint; DamagedCheckpointError if the file is shorter than it says or is none of ours.

    Does not verify the content hash, as `read_checkpoint` does.
    """
    try:
        if not path.is_file():  # opening a named pipe would wait for a writer
            raise ValueError("no such file")
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > _HEADER_BYTES:
                raise ValueError(f"a header of {size} bytes")
            tensors = json.loads(file.read(size))
            file_bytes = os.fstat(file.fileno()).st_size
        texts = tensors.pop("__metadata__")
        if texts["format"] != FORMAT:
            raise ValueError(f"format {texts['format']!r}")
        end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
        if file_bytes != 8 + size + end:
            raise ValueError(f"{file_bytes} bytes instead of {8 + size + end}")
        return Header(
            version=texts["version"],
            config=json.loads(texts["config"]),
            progress=parse_progress(texts["progress"]),
            parameters=sum(_elements(tensors[name], file_bytes) for name in tensors if name.startswith("weights/")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(
            f"{path}: damaged, or not a checkpoint ({error}); use another one of the run"
        ) from None


def _elements(tensor: dict[str, Any], most: int) -> int:
    """The number of a tensor's elements; ValueError if there are more than `most`, so that no product is huge."""
    count = 1
    for size in tensor["shape"]:
        count *= size
        if not 0 <= count <= most:
            raise ValueError("a tensor larger than the file")
    return count


def find_checkpoint(path: Path, option: str = "") -> Path:
    """`path` if it is a file; for the folder of a run, its best checkpoint, else its last one.

    CheckpointError if there is nothing at the path, or no checkpoint in the folder. It names the `option` of the path.
    """
    where = f"{option} {path}" if option else f"{path}"
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError) as error:  # ValueError: a null character
        missing = isinstance(error, FileNotFoundError | NotADirectoryError | ValueError)
        found = "no such file or folder" if missing else error.strerror
        raise CheckpointError(f"{where}: {found}; allowed: a run's folder or a checkpoint in its {FOLDER}/") from None
    if not is_folder:
        return path
    path = run_of(path)
    for name in (BEST, LAST):
        if (path / FOLDER / name).is_file():
            return path / FOLDER / name
    raise CheckpointError(f"{where}: no checkpoint in {path / FOLDER}; allowed: the folder of a run, or a checkpoint")


def run_of(folder: Path) -> Path:
    """The run whose checkpoints the folder holds; else the folder itself."""
    return folder.parent if folder.name == FOLDER and not (folder / FOLDER).exists() else folder


def check_resumable(run_dir: Path) -> None:
    """CheckpointError unless the folder can hold a run to resume."""
    if not (run_dir / FOLDER).is_dir():
        found = f"no {FOLDER}/ to resume from" if run_dir.exists() else "no such file or folder"
        raise CheckpointError(f"{run_dir}: {found}; allowed: the folder of a run")


def parse_progress(text: str) -> dict[str, Any]:
    """The progress in a header; ValueError for what charlm does not write, such as numbers that are not finite."""
    progress = json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_number)
    if not isinstance(progress, dict):
        raise ValueError(f"progress: found {type(progress).__name__}; allowed: a table")
    for name, kinds in (("step", (int,)), ("best_nats", (int, float, NoneType)), ("stop_reason", (str,))):
        if name in progress and type(progress[name]) not in kinds:
            raise ValueError(f"progress: {name}: found {type(progress[name]).__name__}")
    return progress


def _number(text: str) -> int | float:
    """An integer or a float of JSON that is finite and has at most 63 bits."""
    number = int(text) if text.lstrip("-").isdecimal() else float(text)
    if not abs(number) < 2**63:
        raise ValueError(f"progress: found the number {text[:30]}; allowed: finite ones below 2^63")
    return number


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    checkpoints = folder / FOLDER
    return checkpoints.is_dir() and ((folder / CONFIG).is_file() or any(checkpoints.glob("*.safetensors")))


def find_runs(folder: Path, unreadable: Callable[[OSError], object] = lambda error: None) -> Iterator[Path]:
    """Yield the runs in a folder: the folder itself, or those below it, a few folders deep, in no particular order.

    Follows links; skips hidden folders. `unreadable` is called for folders that cannot be read.
    """
    seen: set[tuple[int, int]] = set()
    waiting = [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        try:
            status = place.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            if is_run(place):
                yield place
            elif depth < _DEPTH:
                with os.scandir(place) as entries:
                    names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
                waiting += [(place / name, depth + 1) for name in names]
        except OSError as error:
            unreadable(error)


def describe_run(folder: Path) -> RunSummary:
    """The state of a run; takes no lock and writes nothing. OSError if the folder cannot be read."""
    files = sorted((folder / FOLDER).glob("*.safetensors"), key=_written_s, reverse=True)
    used_by = lock_holder(folder)
    # `last` first, because --resume reads it first; then the newest. Hard links have equal ages.
    for file in sorted(files, key=lambda file: file.name != LAST):
        try:
            header = read_header(file)
            if header.version != str(VERSION):
                continue
            return _described(folder, _written_s(file), header, used_by)
        except (DamagedCheckpointError, KeyError, TypeError, AttributeError):
            continue
    state = "in use" if used_by else "damaged" if files else "no checkpoint"
    return RunSummary(folder, state, _written_s(files[0] if files else folder), used_by)


def _described(folder: Path, written_s: float, header: Header, used_by: str | None) -> RunSummary:
    model, progress = header.config["model"], header.progress
    kind, layers, hidden = model["cell"]["kind"], model["layers"], model["cell"]["hidden"]
    members = model["members"]
    sizes = layers, hidden, members
    if not (isinstance(kind, str) and {*map(type, sizes)} == {int} and max(sizes) < 2**63):
        raise TypeError
    finished = progress["stop_reason"] != ""
    return RunSummary(
        path=folder,
        state="in use" if used_by else "finished" if finished else "resumable",
        written_s=written_s,
        used_by=used_by,
        kind=kind.rpartition(":")[2],
        layers=layers,
        hidden=hidden,
        members=members,
        parameters=header.parameters,
        step=progress["step"],
        best_nats=progress.get("best_nats"),
        corpus_sha256=progress.get("corpus_sha256"),
    )


def _written_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # replaced or removed since it was listed
        return 0.0
