"""The files that charlm writes where the user says: how one begins, and where one may be written.

They are never part of a folder's text, and they replace nothing but an earlier one of their kind.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from charlm.config.schema import DataConfig
from charlm.errors import DamagedCheckpointError, DataError
from charlm.runs import OWN_FILES, is_run, read_header

SCORES = "a table of charlm eval --per-char"
ONNX_EXPORT = "an export for ONNX"

_HEAD_BYTES = 80
_PAGE = re.compile(rb"<!DOCTYPE html>\n<!-- [\w ]+, by charlm (\w+) -->\n")
_SCORES = re.compile(rb"position,(character|byte),nats,bits\r\n")
_ONNX = re.compile(rb"\x08.\x12\x06charlm", re.DOTALL)


def page_of(command: str) -> str:
    """The kind of the pages that a command writes; each begins with the mark in its page.html."""
    return f"a page of charlm {command}"


def written_kind(file: Path) -> str:
    """What charlm has written there, in words; "" for other files. OSError if the file cannot be read."""
    if file.name.startswith("events.out.tfevents."):
        return "events for TensorBoard"
    with file.open("rb", buffering=0) as opened:
        head = opened.read(_HEAD_BYTES)
    if page := _PAGE.match(head):
        return page_of(page[1].decode())
    if _SCORES.match(head):
        return SCORES
    if _ONNX.match(head):
        return ONNX_EXPORT
    if file.suffix == ".safetensors":
        with suppress(DamagedCheckpointError):
            read_header(file)
            return "a checkpoint"
    return ""


def written_folder_kind(folder: Path) -> str:
    """What charlm has written into this folder, in words; "" for other folders."""
    if is_run(folder):
        return "a run"
    return ""


def names_written(kind: str) -> dict[str, str]:
    """The files that charlm writes into a folder of this kind, each with what it is."""
    return dict.fromkeys(OWN_FILES if kind else (), "a file of the run")


def other_output(option: str, path: Path, kind: str) -> str:
    """What to say of a path that holds something else than this kind of output."""
    return f"{option} {path}: exists and is not {kind}; {_allowed(kind)}"


def _allowed(kind: str) -> str:
    return f"allowed: a new or empty file, or an earlier {kind.partition(' ')[2]}"


def check_output(file: Path, option: str, kind: str, data: DataConfig | None = None, text: Path | None = None) -> None:
    """DataError now, instead of after a long computation, unless the file can be written and nothing is lost by it.

    It may be new, empty, or an earlier output of this `kind`, unless that is the text, or one of the config's `data`. A
    link must lead to such a file. A pipe or device may always be written.
    """
    try:
        if file.is_symlink() and not file.exists():
            raise DataError(f"{option} {file}: a link to nothing; {_allowed(kind)}")
        is_new = not file.exists()
        if not (is_new or file.is_file() or file.is_dir()):
            return
        with file.open("ab"):
            pass
        if is_new:
            file.unlink()
            return
        if not file.stat().st_size:
            return
        if written_kind(file) != kind:
            raise DataError(other_output(option, file, kind))
        texts = (text, *((data.source, data.valid_source, data.test_source) if data else ()))
        paths = [Path(os.path.expanduser(each)) for each in texts if each]  # noqa: PTH111 (~unknown stays as it is)
        if any(path.is_file() and file.samefile(path) for path in paths):
            raise DataError(f"{option} {file}: a text of the model or of this command; allowed: another file")
    except OSError as error:
        raise _unwritable(file, option, error) from None


def write_output(file: Path, option: str, content: bytes) -> None:
    """Write the file; DataError if it cannot be written."""
    try:
        file.write_bytes(content)
    except OSError as error:
        raise _unwritable(file, option, error) from None


def _unwritable(file: Path, option: str, error: OSError) -> DataError:
    return DataError(f"{option} {file}: {error.strerror}; allowed: a file that can be written")
