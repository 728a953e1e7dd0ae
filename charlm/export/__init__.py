"""Write a trained model in a form that other programs use without charlm.

    torch_module.py   a folder: the weights, the vocabulary, and Python that needs PyTorch alone
    onnx_graph.py     one file for any runtime of ONNX
    recording.py      PyTorch's operators, recorded as nodes of such a graph
    agreement.py      does what was written compute what charlm computes?

A format is a function that writes the model to a path and returns the largest difference from charlm's own logits, and
a line in `FORMATS`. `export` does the rest: it writes beside the place first, so nothing half-written is ever there.
"""

import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from charlm.errors import ExportError
from charlm.export.onnx_graph import write_onnx
from charlm.export.torch_module import write_torch
from charlm.inference import TrainedModel

FORMATS: dict[str, Callable[[TrainedModel, Path], float]] = {"torch": write_torch, "onnx": write_onnx}


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    size_bytes: int
    difference: float
    """The largest difference between its logits and charlm's."""


def export(trained: TrainedModel, to: str, out: Path, *, overwrite: bool = False) -> Exported:
    """Write the model to `out` in one of FORMATS, checked against charlm's own logits.

    ExportError if something is there and `overwrite` is off, if it is not an earlier export, if the result does not
    compute what charlm computes, or if it cannot be written. PackageError if a package is missing.
    """
    _check_place(out, overwrite)
    beside = out.absolute().parent / f".{out.name}.{uuid.uuid4().hex}.tmp"
    try:
        difference = FORMATS[to](trained, beside)
        _check_place(out, overwrite, beside)
        _move(beside, out)
    except OSError as error:
        raise ExportError(f"--out {out}: {error.strerror}; allowed: a place that can be written") from None
    finally:
        _remove(beside)
    files = [out] if out.is_file() else [*out.iterdir()]
    return Exported(out, sum(file.stat().st_size for file in files), difference)


def _check_place(out: Path, overwrite: bool, new: Path | None = None) -> None:
    """ExportError if `out` may not be replaced; with `new`, by this file or folder."""
    if not os.path.lexists(out):
        return
    if not overwrite:
        raise ExportError(f"--out {out}: exists already; --overwrite replaces an earlier export")
    if new is None:
        return
    if not ((new.is_dir() and out.is_dir()) or (new.is_file() and out.is_file() and _head(new) == _head(out))):
        raise ExportError(f"--out {out}: is not an earlier export in this format; name another place")
    if out.is_dir() and (others := {file.name for file in out.iterdir()} - {file.name for file in new.iterdir()}):
        raise ExportError(f"--out {out}: holds {min(others)}, so it is not an earlier export; name another folder")


def _head(file: Path) -> bytes:
    """The bytes with which an ONNX file begins: its version and its producer, charlm."""
    with file.open("rb") as opened:
        return opened.read(10)


def _move(new: Path, out: Path) -> None:
    if not out.is_dir():
        new.replace(out)
        return
    # A folder cannot replace one that is not empty.
    old = new.with_suffix(".old")
    out.replace(old)
    new.replace(out)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
