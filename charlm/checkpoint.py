"""The checkpoint file: one self-contained safetensors file, written whole or not at all.

Tensors: the weights, their running average, optimizer state, carried hidden state and random state. Header: config,
vocabulary and progress as JSON, and a SHA-256 of everything. A cell that is not built in is stored as data
(`charlm.cells.stored`), so its Python file is not needed again. Reading a file runs no code.
"""

import contextlib
import hashlib
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from charlm.cells.cell import is_in_file
from charlm.cells.stored import StoredCell, as_json
from charlm.config import Config, parse_config
from charlm.data.vocabulary import Vocabulary
from charlm.errors import CheckpointError, ConfigError, DamagedCheckpointError, RunError
from charlm.model import count_parameters
from charlm.runs import (
    BEST,
    FOLDER,
    FORMAT,
    HEADER_BYTES,
    VERSION,
    check_format,
    parse_progress,
    read_header,
    unreadable_checkpoint,
)
from charlm.system.files import NotOwnError, read_file, replace_file
from charlm.system.host import free_bytes
from charlm.version import __version__

Tensors = Mapping[str, Tensor]
"""By their names."""


@dataclass(frozen=True)
class Checkpoint:
    """The content of one file. Tensors are on the CPU; a trainer's may share its memory."""

    config: Config
    vocabulary: Vocabulary
    weights: Tensors
    progress: Mapping[str, Any]
    """The numbers of `TrainState`, as JSON."""
    averaged: Tensors = field(default_factory=dict)
    """Running average of the weights; empty if the run keeps none."""
    optimizer: Tensors = field(default_factory=dict)
    carried: Tensors = field(default_factory=dict)
    """Carried hidden state, random state, sums since the last log."""

    @property
    def trained_symbols(self) -> int:
        """Characters or bytes that the weights were trained on, in this run and those that it started from."""
        return self.progress.get("earlier_symbols", 0) + self.progress.get("symbols", 0)


_GROUPS = ("weights", "averaged", "optimizer", "carried")


def save_checkpoint(checkpoint: Checkpoint, path: Path, also_as: Iterable[Path] = ()) -> None:
    """Write a checkpoint to `path`, and under further names, each in one step; RunError if it cannot be written."""
    tensors = {
        f"{group}/{name}": tensor.contiguous()
        for group in _GROUPS
        for name, tensor in getattr(checkpoint, group).items()
    }
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "charlm": __version__,
        "config": json.dumps(checkpoint.config.model_dump(mode="json")),
        "vocabulary": json.dumps(checkpoint.vocabulary.to_json()),
        "progress": json.dumps(checkpoint.progress, allow_nan=False),
        "parameters": str(count_parameters(checkpoint.config.model, len(checkpoint.vocabulary))),
    }
    if is_in_file(checkpoint.config.model.cell.kind):
        header["cell"] = as_json(checkpoint.config.model.cell)
    header["sha256"] = digest(header, tensors)
    # `path` comes last: a run killed before this resumes from the older file and writes the other names again.
    try:
        path.parent.mkdir(exist_ok=True)  # but not the run's folder, if the user removed it
        data = save(tensors, header)
        if (size := _header_bytes(data)) > HEADER_BYTES:
            allowed = f"allowed: {HEADER_BYTES:,}; choose fewer layers or members"
            raise RunError(f"{path}: cannot be written: found a header of {size:,} bytes; {allowed}")
        for name in (*also_as, path):
            replace_file(name, data)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error}); earlier checkpoints are whole; check the disk") from None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read and verify a checkpoint; CheckpointError unless the file is whole and unaltered."""
    if not path.is_file():
        raise DamagedCheckpointError(f"{path}: no such file; allowed: a run's folder or a checkpoint in its {FOLDER}/")
    free = free_bytes()
    try:
        data = read_file(path, sys.maxsize if free is None else free)
        if (size := _header_bytes(data)) > HEADER_BYTES:
            raise ValueError(f"a header of {size} bytes")
        tensors = load(data)
        header = json.loads(data[8 : 8 + size]).get("__metadata__") or {}
    except NotOwnError as error:
        raise CheckpointError(f"{path}: {error.strerror} of free memory; free some, or use a smaller model") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise unreadable_checkpoint(path, error) from None
    check_format(path, header)
    if header.get("sha256") != digest({k: v for k, v in header.items() if k != "sha256"}, tensors):
        raise DamagedCheckpointError(f"{path}: altered or damaged: its content hash does not match; use another one")
    if fault := next((name for name, tensor in tensors.items() if not all_finite(tensor)), None):
        raise DamagedCheckpointError(f"{path}: {fault} holds numbers that are not finite; use another one of the run")
    return _parse(path, header, tensors)


def _header_bytes(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")


def all_finite(tensor: Tensor) -> bool:
    """Whether no element is infinite or NaN; ten times as fast as torch.isfinite."""
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1 or not tensor.numel():
        return True  # charlm writes no floats of one byte
    values = tensor.detach()
    low, high = torch.aminmax(values if values.dtype == torch.float64 else values.float())
    return math.isfinite(low) and math.isfinite(high)


def newest_whole(run_dir: Path, before_step: float = math.inf) -> tuple[Path, Checkpoint] | None:
    """The newest undamaged checkpoint of a run with fewer than `before_step` steps.

    After a rollback, the best checkpoint may be of a later step than those that are newer.
    """
    ages: dict[Path, tuple[int, int]] = {}
    for path in (run_dir / FOLDER).glob("*.safetensors"):
        with contextlib.suppress(CheckpointError):
            _, progress, _ = read_header(path)
            if progress["step"] < before_step:
                ages[path] = progress.get("rollbacks", 0), progress["step"]
    for path in sorted(ages, key=lambda path: ages[path], reverse=True):
        with contextlib.suppress(DamagedCheckpointError):
            return path, read_checkpoint(path)
    return None


def best_score(run_dir: Path) -> tuple[float | None, int]:
    """Score (nats per character) and step of a run's best checkpoint, if it is whole; else None and 0."""
    try:
        progress = read_checkpoint(run_dir / FOLDER / BEST).progress
    except CheckpointError:
        return None, 0
    return progress.get("best_nats"), progress.get("best_step", 0)


def _parse(path: Path, header: Mapping[str, str], tensors: Tensors) -> Checkpoint:
    groups: dict[str, dict[str, Tensor]] = {group: {} for group in _GROUPS}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        if group in groups:
            groups[group][rest] = tensor
    try:
        config = parse_config(json.loads(header["config"]), f"{path}: config")
        if isinstance(config.model.cell, StoredCell):
            cell = config.model.cell.with_programs(header.get("cell", ""))
            config = config.model_copy(update={"model": config.model.model_copy(update={"cell": cell})})
        vocabulary = Vocabulary.from_json(json.loads(header["vocabulary"]))
        progress = parse_progress(header["progress"])
        return Checkpoint(config=config, vocabulary=vocabulary, progress=progress, **groups)
    except (KeyError, ValueError, RecursionError, ConfigError, CheckpointError) as error:
        reason = str(error).replace("\n", "; ")
        raise DamagedCheckpointError(f"{path}: no readable config, vocabulary or progress in it ({reason})") from None


def digest(header: Mapping[str, str], tensors: Tensors) -> str:
    """SHA-256 of named texts and named tensors on the CPU, whatever their order."""
    sha256 = hashlib.sha256(json.dumps(sorted(header.items())).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        sha256.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        sha256.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()
