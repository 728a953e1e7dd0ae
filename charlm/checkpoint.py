"""The checkpoint file: one self-contained safetensors file, written whole or not at all.

Its tensors are the weights, their running average, optimizer state, carried hidden state and random state. Its header
holds config, vocabulary and progress as JSON, and a SHA-256 of everything. A cell that is not built in is there
as data too (`charlm.cells.stored`), so that its Python file is not needed again. Reading a file runs no code.
"""

import contextlib
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from charlm.cells.cell import is_in_file
from charlm.cells.stored import StoredCell, as_json
from charlm.config import Config, parse_config
from charlm.data.vocabulary import Vocabulary
from charlm.errors import CheckpointError, ConfigError, DamagedCheckpointError, RunError
from charlm.runs import FOLDER, FORMAT, VERSION, read_header
from charlm.system.files import move, replace_file, temporary_beside


@dataclass(frozen=True)
class Checkpoint:
    """The content of one file. Tensors are on the CPU and may be views of the mapped file: copy them to change them."""

    config: Config
    vocabulary: Vocabulary
    weights: Mapping[str, Tensor]
    progress: Mapping[str, Any]
    """The numbers of `TrainState`, as JSON."""
    averaged: Mapping[str, Tensor] = field(default_factory=dict)
    """Running average of the weights; empty if the run keeps none."""
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    carried: Mapping[str, Tensor] = field(default_factory=dict)
    """Carried hidden state, random state, sums since the last log."""


_GROUPS = ("weights", "averaged", "optimizer", "carried")


def save_checkpoint(checkpoint: Checkpoint, path: Path, also_as: Iterable[Path] = ()) -> None:
    """Write a checkpoint to `path`, and under further names; each name has its old file or the whole new one.

    RunError if it cannot be written.
    """
    tensors = {
        f"{group}/{name}": tensor.contiguous()
        for group in _GROUPS
        for name, tensor in getattr(checkpoint, group).items()
    }
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "config": json.dumps(checkpoint.config.model_dump(mode="json")),
        "vocabulary": json.dumps(checkpoint.vocabulary.to_json()),
        "progress": json.dumps(checkpoint.progress, allow_nan=False),
    }
    if is_in_file(checkpoint.config.model.cell.kind):
        header["cell"] = as_json(checkpoint.config.model.cell)
    header["sha256"] = digest(header, tensors)
    # `path` comes last: a run killed before this resumes from the older file and writes the other names again.
    first, *others = *also_as, path
    try:
        path.parent.mkdir(exist_ok=True)  # but not the run's folder, if the user removed it
        replace_file(first, save(tensors, header))
        for name in others:
            _link(first, name)
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written ({error}); earlier checkpoints are whole; free space or check permissions"
        ) from None


def _link(path: Path, name: Path) -> None:
    """Give `path` a second name, which may exist already; a copy if the file system has no hard links."""
    temporary = temporary_beside(name)
    try:
        os.link(path, temporary)
        move(temporary, name)
    except OSError:
        temporary.unlink(missing_ok=True)
        replace_file(name, path.read_bytes())


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; CheckpointError unless the file is whole and unaltered."""
    if not path.is_file():
        raise DamagedCheckpointError(f"{path}: no such file; allowed: a run's folder or a checkpoint in its {FOLDER}/")
    try:
        with _in_utf8(path) as name, safe_open(name, framework="pt", device="cpu") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise DamagedCheckpointError(
                    f"{path}: a safetensors file, but not a charlm checkpoint; allowed: a checkpoint that charlm wrote"
                )
            if header.get("version") != str(VERSION):
                raise CheckpointError(
                    f"{path}: written in format version {header.get('version')}; allowed: {VERSION}; "
                    "use the charlm that wrote it, or train anew"
                )
            tensors = {name: _kept(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DamagedCheckpointError(
            f"{path}: damaged, or not a checkpoint ({' '.join(str(error).split())}); use another one of the run"
        ) from None
    if header.get("sha256") != digest({k: v for k, v in header.items() if k != "sha256"}, tensors):
        raise DamagedCheckpointError(f"{path}: altered or damaged: its content hash does not match; use another one")
    if fault := next((name for name, tensor in tensors.items() if not all_finite(tensor)), None):
        raise DamagedCheckpointError(f"{path}: {fault} holds numbers that are not finite; use another one of the run")
    return _parse(path, header, tensors)


def _kept(mapped: Tensor) -> Tensor:
    """The tensor itself; on Windows a copy, because the next checkpoint could not replace a file that is mapped."""
    return mapped.clone() if sys.platform == "win32" else mapped


@contextlib.contextmanager
def _in_utf8(path: Path) -> Iterator[str]:
    """A name of the file in UTF-8, because safetensors reads no other: the path, or that of the opened file."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        with path.open("rb") as opened:
            yield f"/dev/fd/{opened.fileno()}"
    else:
        yield str(path)


def all_finite(tensor: Tensor) -> bool:
    """Whether no element is infinite or NaN; ten times as fast as torch.isfinite."""
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1 or not tensor.numel():
        return True  # charlm writes no floats of one byte
    values = tensor.detach()
    low, high = torch.aminmax(values if values.dtype == torch.float64 else values.float())
    return math.isfinite(low) and math.isfinite(high)


def newest_whole(run_dir: Path, before_step: float = math.inf) -> tuple[Path, Checkpoint] | None:
    """The newest undamaged checkpoint of a run with fewer than `before_step` steps."""
    steps: dict[Path, int] = {}
    for path in (run_dir / FOLDER).glob("*.safetensors"):
        with contextlib.suppress(DamagedCheckpointError):
            _, progress, _ = read_header(path)
            steps[path] = progress.get("step", -1)
    for path in sorted(steps, key=lambda path: steps[path], reverse=True):
        if -1 < steps[path] < before_step:
            with contextlib.suppress(DamagedCheckpointError):
                return path, read_checkpoint(path)
    return None


def _parse(path: Path, header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Checkpoint:
    groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor
    try:
        config = parse_config(json.loads(header["config"]), f"{path}: config")
        if isinstance(config.model.cell, StoredCell):
            cell = config.model.cell.with_programs(header.get("cell", ""))
            config = config.model_copy(update={"model": config.model.model_copy(update={"cell": cell})})
        vocabulary = Vocabulary.from_json(json.loads(header["vocabulary"]))
        progress = json.loads(header["progress"])
        return Checkpoint(
            config=config,
            vocabulary=vocabulary,
            progress=progress,
            **{group: groups[group] for group in _GROUPS},
        )
    except (KeyError, ValueError, RecursionError, ConfigError, CheckpointError) as error:
        reason = str(error).replace("\n", "; ")
        raise DamagedCheckpointError(f"{path}: no readable config, vocabulary or progress in it ({reason})") from None


def digest(header: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of named texts and named tensors on the CPU, whatever their order."""
    sha256 = hashlib.sha256(json.dumps(sorted(header.items())).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        sha256.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        sha256.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()
