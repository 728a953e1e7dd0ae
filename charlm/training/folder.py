"""A run's folder: who may write there, and which checkpoints it holds.

config.yaml    every option, resolved
text.txt       the text, if it came from a pipe
metrics.jsonl  one line per log, see metrics.py
samples.jsonl  one line per sample, see `draw_sample`
checkpoints/   last, best, and the newest numbered ones
train/ valid/  TensorBoard events
"""

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path

from charlm.checkpoint import Checkpoint, newest_whole, read_checkpoint, save_checkpoint
from charlm.config import Config, dump_config
from charlm.config.parse import MAX_BYTES
from charlm.config.schema import DataConfig
from charlm.data.reading import arriving, text_name
from charlm.data.sources import check_texts_apart
from charlm.errors import CheckpointError, DamagedCheckpointError, DataError, RunError
from charlm.runs import (
    BEST,
    CHARTS,
    CONFIG,
    FOLDER,
    LAST,
    METRICS,
    OWN_CONFIG,
    SAMPLES,
    TEXT,
    check_new,
    check_resumable,
    has_checkpoint,
)
from charlm.system.console import say
from charlm.system.files import (
    NotOwnError,
    plain_name,
    read_file,
    reason_of,
    refuse_links,
    remove_leftovers,
    replace_file,
    replacing,
)
from charlm.system.lock import LOCK, holds, locked

# During the run


def check_ours(run_dir: Path, *, is_begun: bool = True) -> None:
    """RunError if the folder was removed, renamed or replaced, or may be another process's now.

    is_begun: whether the run has written a checkpoint there.
    """
    with refusing_os_errors(run_dir):
        is_ours = (not is_begun or (run_dir / FOLDER / LAST).exists()) and holds(run_dir)
    if not is_ours:
        raise RunError(
            f"{run_dir}: removed, renamed or taken by another process during the run; allowed: one process, and "
            "a folder that stays; start a new run, or --resume this one where it is now"
        )


def write_config(run_dir: Path, config: Config) -> None:
    with refusing_os_errors(run_dir):
        replace_file(run_dir / CONFIG, dump_config(config).encode())


def write_checkpoint(run_dir: Path, checkpoint: Checkpoint, *, best: bool, numbered: bool, keep: int) -> None:
    """Write `last` and, on request, `best` and a numbered checkpoint; keep the newest `keep` numbered ones."""
    folder = run_dir / FOLDER
    names = [BEST] * best + [_numbered(checkpoint.progress["step"])] * numbered
    save_checkpoint(checkpoint, folder / LAST, [folder / name for name in names])
    _remove(run_dir, _numbered_files(run_dir)[:-keep])


def drop_after(run_dir: Path, step: int) -> None:
    """Remove the numbered checkpoints of later steps."""
    _remove(run_dir, [path for path in _numbered_files(run_dir) if path.name > _numbered(step)])


def _numbered(step: int) -> str:
    return f"step-{step:08}.safetensors"


def _numbered_files(run_dir: Path) -> list[Path]:
    return sorted((run_dir / FOLDER).glob("step-*.safetensors"))


def _remove(run_dir: Path, files: list[Path]) -> None:
    with refusing_os_errors(run_dir):
        for file in files:
            file.unlink(missing_ok=True)


# Before the run


def claim_if_there(run_dir: Path | None, data: DataConfig, locks: contextlib.ExitStack) -> bool:
    """Claim the folder for a new run if it is there; returns whether it is still to be made, see `make_folder`."""
    with refusing_os_errors(run_dir or Path("runs")):
        if run_dir is None or not run_dir.is_dir():
            return True
    check_texts_apart(data, run_dir)
    _claim_new(run_dir, locks)
    return False


def make_folder(run_dir: Path | None, name: str, locks: contextlib.ExitStack) -> Path:
    """Make and claim the folder of a new run. None: runs/<name>-<time>, and in the same second with -2, -3, … added."""
    with refusing_os_errors(run_dir or Path("runs")):
        folder, number = run_dir, 1
        first = Path("runs") / f"{plain_name(name)}-{time.strftime('%Y%m%d-%H%M%S')}"
        while folder is None:
            place = first if number == 1 else first.with_name(f"{first.name}-{number}")
            with contextlib.suppress(FileExistsError):
                place.mkdir(parents=True)
                folder = place
            number += 1
        folder.mkdir(parents=True, exist_ok=True)
    _claim_new(folder, locks)
    return folder


def claim_run(run_dir: Path, locks: contextlib.ExitStack) -> tuple[Path, Checkpoint]:
    """Claim the folder of a run, and read its last checkpoint; if it is damaged or missing, the newest whole one."""
    last = run_dir / FOLDER / LAST
    with refusing_os_errors(run_dir):
        check_resumable(run_dir)
        _claim(run_dir, locks)
        try:
            return last, read_checkpoint(last)
        except DamagedCheckpointError as error:
            if not (newest := newest_whole(run_dir)):
                raise CheckpointError(f"{error}; no other checkpoint in {run_dir / FOLDER} is whole") from None
            say("damaged", str(error))
            return newest


def _claim_new(folder: Path, locks: contextlib.ExitStack) -> None:
    """Claim a folder for a new run; RunError if it may not write there."""
    with refusing_os_errors(folder):
        _claim(folder, locks)
        check_new(folder)


def _claim(folder: Path, locks: contextlib.ExitStack) -> None:
    """Lock an existing folder until `locks` are closed, and remove what a killed process was writing there."""
    refuse_links(folder, (FOLDER, METRICS, SAMPLES, *CHARTS))
    locks.enter_context(locked(folder))
    for place in (folder, folder / FOLDER):
        remove_leftovers(place, -math.inf)


def keep_config(run_dir: Path) -> None:
    """Copy the user's own config.yaml in the folder of a new run, which will write another one."""
    file, copy = run_dir / CONFIG, run_dir / OWN_CONFIG
    with refusing_os_errors(run_dir):
        if not file.is_file():
            return
        own = read_file(file, MAX_BYTES)
        if copy.exists() and read_file(copy, MAX_BYTES) != own:
            raise RunError(f"{copy}: exists, and the run would write to it; allowed: another --run-dir")
        replace_file(copy, own)
    say("config", f"{file}: yours is kept as {OWN_CONFIG}; the run writes every option to {CONFIG}")


def keep_text(source: str, run_dir: Path | None) -> Path:
    """Write the text of a pipe into the folder of the run that it is for, and return the file.

    RunError if the folder holds a run or a text already; DataError if the pipe is empty or cannot be read.
    """
    with contextlib.ExitStack() as locks, refusing_os_errors(run_dir or Path("runs")):
        folder = make_folder(run_dir, "stdin", locks)
        file, name, size = folder / TEXT, text_name(source), 0
        if file.exists():
            allowed = "allowed: a folder without it; train on it, or take another --run-dir"
            raise RunError(f"{file}: exists already; {allowed}")
        say("data", f"reading {name} into {file}")
        try:
            with replacing(file) as opened:
                for block in arriving(source):
                    size += opened.write(block)
                if not size:
                    raise DataError(f"{name}: found no text; allowed: one character or more")
        finally:
            if not file.exists():
                discard_text(folder)
    return file


def discard_text(run_dir: Path) -> None:
    """Remove the text of a pipe that no run could start with, and the folder if nothing else is in it."""
    with contextlib.suppress(OSError):
        if not has_checkpoint(run_dir):
            (run_dir / TEXT).unlink(missing_ok=True)
        if [path.name for path in run_dir.iterdir()] == [LOCK]:
            (run_dir / LOCK).unlink()
            run_dir.rmdir()


@contextlib.contextmanager
def refusing_os_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError into a RunError about the folder, or about what is not charlm's own in it."""
    try:
        yield
    except NotOwnError as error:
        allowed = "allowed: what charlm wrote itself; remove it"
        raise RunError(f"{error.filename}: {error.strerror}; {allowed}") from None
    except OSError as error:
        raise RunError(f"{folder}: {reason_of(error)}; allowed: a folder that can be written; see --run-dir") from None
