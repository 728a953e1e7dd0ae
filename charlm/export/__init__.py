"""Write a trained model in a form that other programs use without charlm.

    torch_module.py   a folder: the weights, the vocabulary, and Python that needs PyTorch alone
    step_code.py      a cell's step in that Python
    onnx_graph.py     one file for any runtime of ONNX
    onnx_layer.py     a layer's step in that file
    check_export.py   what all share: the vocabulary, and whether the copy computes what charlm does
    html.py           one page of HTML that runs the model in a browser
    html_model.py     its programs and weights, packed

Steps are written from the program of a cell (charlm/cells/program.py), so every cell can be exported.

A format is a function that writes the model to a path and returns the outcome of its check, whose `str` is for people,
and a line in `FORMATS`. `export` writes beside the place first, so nothing half-written is ever there.
"""

import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from charlm.data.outputs import ONNX_EXPORT, page_of, written_kind
from charlm.errors import ExportError
from charlm.export.html import write_html
from charlm.export.onnx_graph import write_onnx
from charlm.export.torch_module import CODE, VOCABULARY, WEIGHTS, write_torch
from charlm.inference import TrainedModel
from charlm.system.files import move

FORMATS: dict[str, Callable[..., object]] = {"torch": write_torch, "onnx": write_onnx, "html": write_html}
"""(trained, path, options of the format) → the outcome of the check."""
TORCH_EXPORT = "an export for PyTorch"
TORCH_FILES = (CODE, WEIGHTS, VOCABULARY)
_KINDS = {"torch": TORCH_EXPORT, "onnx": ONNX_EXPORT, "html": page_of("export")}


@dataclass(frozen=True)
class Exported:
    """What was written."""

    path: Path
    size_bytes: int
    check: Any
    """The outcome of the check: an Agreement, or Costs for a page."""


def export(trained: TrainedModel, to: str, out: Path, *, overwrite: bool = False, **options: Any) -> Exported:
    """Write the model to `out` in one of FORMATS, checked against charlm's own model; options: the format's.

    ExportError if something is there and `overwrite` is off, if it is not an earlier export, if the result does not
    compute what charlm computes, or if it cannot be written. PackageError if a package is missing.
    """
    beside = out.absolute().parent / f".{out.name}.{uuid.uuid4().hex}.tmp"
    try:
        _check_place(out, to, overwrite)
        check = FORMATS[to](trained.first_member("export"), beside, **options)
        _check_place(out, to, overwrite)
        _move(beside, out)
    except OSError as error:
        raise ExportError(f"--out {out}: {error.strerror}; allowed: a place that can be written") from None
    except SafetensorError as error:  # the name is not UTF-8
        raise ExportError(f"--out {out}: {error}; allowed: a place that safetensors can read") from None
    finally:
        _remove(beside)
    files = [out] if out.is_file() else [*out.iterdir()]
    return Exported(out, sum(file.stat().st_size for file in files), check)


def _check_place(out: Path, to: str, overwrite: bool) -> None:
    """ExportError if there is something that may not be replaced by an export in this format."""
    if not os.path.lexists(out):
        return
    if not overwrite:
        raise ExportError(f"--out {out}: exists already; --overwrite replaces an earlier export")
    kind = _KINDS[to]
    if kind == TORCH_EXPORT and out.is_dir():
        existing, expected = {file.name for file in out.iterdir()}, {*TORCH_FILES}
        if existing and existing != expected:
            unexpected = min(existing - expected or existing)
            raise ExportError(f"--out {out}: holds {unexpected}, so it is not an earlier export; name another folder")
    elif kind == TORCH_EXPORT or not out.is_file() or (out.stat().st_size and written_kind(out) != kind):
        raise ExportError(f"--out {out}: exists and is not {kind}; allowed: a new place, or an earlier export")


def _move(new: Path, out: Path) -> None:
    if not out.is_dir():
        move(new, out)
        return
    # A folder cannot replace one that is not empty.
    old = new.with_suffix(".old")
    out.replace(old)
    new.replace(out)
    _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
