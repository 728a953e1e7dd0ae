"""What a run reports: metrics.jsonl, samples.jsonl, TensorBoard events, and the progress bar on stderr.

torch's SummaryWriter writes from a thread, which cannot report a full disk to its caller; here each event is written
before the call returns.
"""

import contextlib
import io
import itertools
import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import summary
from tqdm import tqdm

from charlm.config.schema import TrainConfig
from charlm.runs import CHARTS, LOG_BYTES, METRICS, SAMPLES
from charlm.system.console import say
from charlm.system.files import read_file, reason_of, unlinked
from charlm.system.formatting import format_duration, nats_to_bits, to_json
from charlm.training.state import TrainState

_TAGS = {
    "loss/nats_per_char": "nats",
    "other_units/bits_per_char": "bpc",
    "other_units/window_loss": "loss",
    "training/lr": "lr",
    "training/grad_norm": "grad_norm",
    "training/chars_per_s": "chars_per_s",
}
"""TensorBoard's tag → the field of a row. The page sorts by tag."""


def train_row(state: TrainState, train: TrainConfig, symbols_per_char: float) -> dict[str, Any]:
    """The mean over what was scored since the last row, see `metrics_row`; chars_per_s counts what was read."""
    loss = state.objective_sum.item() / state.interval_steps
    symbols_per_s = state.interval_steps * train.bptt * train.batch_size / state.interval_s
    nats = symbols_per_char * loss / train.scored_steps
    row = metrics_row(state, symbols_per_char, "train", loss, nats, symbols_per_s / symbols_per_char)
    return row | {"grad_norm": state.grad_norm.item()}


def metrics_row(
    state: TrainState, symbols_per_char: float, split: str, loss: float, nats: float, chars_per_s: float
) -> dict[str, Any]:
    """One line of metrics.jsonl; for a byte model too, nats, bpc and chars are of characters.

    loss: of a window, without penalties: the nats of a symbol × `TrainConfig.scored_steps`.
    grad_norm: norm of the last gradient before clipping; None for the split valid.
    """
    return {
        "step": state.step,
        "chars": round(state.symbols / symbols_per_char),
        "split": split,
        "loss": loss,
        "nats": nats,
        "bpc": nats_to_bits(nats),
        "lr": state.lr,
        "grad_norm": None,
        "chars_per_s": chars_per_s,
        "elapsed_s": state.elapsed_s,
    }


class Tracker:
    """Writes the metrics, samples and TensorBoard events of a run. Only the first process calls its methods.

    A fault such as a full disk is printed once; unwritten rows wait.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._faults: set[str] = set()
        self._waiting: dict[Path, bytes] = {}
        self._chart = ""

    def begin(self, resumed: TrainState | None) -> None:
        """Begin the files. resumed: the state of a resumed run, which keeps the rows written up to there."""
        if resumed:
            self._truncate(resumed)
        for name in (METRICS, SAMPLES):
            open(self._folder / name, "ab", opener=unlinked).close()
        self._begin_charts(resumed)

    def _truncate(self, state: TrainState) -> None:
        self._keep_rows(self._folder / METRICS, state.step, state.rows)
        self._keep_rows(self._folder / SAMPLES, -1 if state.sampled_step is None else state.sampled_step)

    def _keep_rows(self, file: Path, step: int, rows: int | None = None) -> None:
        """Drop all rows after the first `rows`, and from the first on that is incomplete or of a later step.

        Also of those that wait. A full disk does not prevent it.
        """
        written = read_file(file, LOG_BYTES) if file.exists() else b""
        logged = (written + self._waiting.get(file, b"")).splitlines(keepends=True)
        lines = [*itertools.takewhile(lambda line: _step_of(line) <= step, logged[:rows])]
        kept = b"".join(lines)
        self._waiting[file] = kept[len(written) :]
        if len(kept) < len(written):
            with open(file, "r+b", opener=unlinked) as opened:
                opened.truncate(len(kept))
        if rows is not None and len(lines) < rows:
            say("log", f"{file}: found {len(lines)} of {rows} rows before update {step + 1}; the others are lost")

    def _begin_charts(self, resumed: TrainState | None) -> None:
        """Begin a new file of events per split; TensorBoard reads a folder's in the order of their names.

        Of older ones it drops what came after the resumed state.
        """
        chart = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        events = [Event(file_version="brain.Event:2")]
        if resumed:
            events.append(Event(step=resumed.step + 1, session_log=SessionLog(status=SessionLog.START)))
        for split in CHARTS:
            (self._folder / split).mkdir(exist_ok=True)
            (self._folder / split / chart).touch()
        self._chart = chart
        for split in CHARTS:
            self._append(self._folder / split / chart, _encoded(events))

    def rewind(self, state: TrainState) -> None:
        """Drop later rows, samples and events, as a run that resumes from this state does."""
        self._attempt(self._truncate, state)
        self._attempt(self._begin_charts, state)

    def record(self, row: Mapping[str, Any]) -> None:
        """Log a row of metrics, to the file and to TensorBoard, or an event that the row's `split` names."""
        self._append(self._folder / METRICS, _line(row))
        split = row["split"]
        if split in CHARTS:
            tags = [tag for tag in _TAGS if split == "train" or not tag.startswith("training/")]
            events = [Event(step=row["step"], summary=summary.scalar(tag, row[_TAGS[tag]])) for tag in tags]
            self._append(self._folder / split / self._chart, _encoded(events))

    def sample(self, sample: Mapping[str, Any], step: int) -> None:
        """Log a sample, see `draw_sample`."""
        self._append(self._folder / SAMPLES, _line({"step": step, **sample}))

    def close(self) -> None:
        """Try once more to write what waits."""
        for file in self._waiting:
            self._append(file, b"")

    def _append(self, file: Path, data: bytes) -> None:
        """Append to a file what waits for it and the data. No file stays open: Windows could not replace it."""
        self._waiting[file] = self._waiting.get(file, b"") + data
        self._attempt(self._write, file)

    def _write(self, file: Path) -> None:
        # It makes no file: where the run's folder was replaced, none of the run's belongs.
        with open(file, "r+b", buffering=0, opener=unlinked) as opened:
            opened.seek(0, os.SEEK_END)
            while self._waiting[file]:
                written = opened.write(self._waiting[file])
                self._waiting[file] = self._waiting[file][written:]

    def _attempt(self, write: Callable[..., object], *arguments: object) -> None:
        """Report an OSError, once per cause, and go on."""
        try:
            write(*arguments)
        except OSError as error:
            fault = reason_of(error)
            if fault not in self._faults:
                say("log", f"{self._folder}: cannot be written ({fault}); training goes on")
            self._faults.add(fault)


def _line(row: Mapping[str, Any]) -> bytes:
    return to_json(row).encode() + b"\n"


def _encoded(events: list[Event]) -> bytes:
    data = io.BytesIO()
    for event in events:
        event.wall_time = time.time()
        RecordWriter(data).write(event.SerializeToString())
    return data.getvalue()


def _step_of(line: bytes) -> float:
    """Step of a row; infinity for a line that is not a row."""
    try:
        return float(json.loads(line)["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, TypeError, KeyError, RecursionError):
        return math.inf


class _Bar(tqdm):
    monitor_interval = 0
    """No thread looks after the bar. In tqdm itself this would hold for the caller's bars, too."""


def progress_bar(shown: bool) -> tqdm:
    """A bar for the fraction of the run that is done; invisible if stderr is not a terminal, or if not `shown`."""
    return _Bar(
        total=1.0,
        file=sys.stderr,
        disable=None if shown else True,
        leave=False,
        dynamic_ncols=True,
        mininterval=0.2,
        miniters=0,
        bar_format="{desc} {percentage:3.0f}%|{bar:10}| {unit}",
        desc="? left",
        unit="update 0",
    )


def show_progress(bar: tqdm, state: TrainState, share: float, row: Mapping[str, Any]) -> None:
    """Move the bar to `share`, 0 to 1, with the scores of a row, if any. tqdm draws it now and then, and cuts it."""
    if bar.disable:
        return
    left = format_duration(state.updating_s * (1 - share) / share) if share > 0 else "?"
    bar.set_description_str(f"{left} left", refresh=False)
    bar.unit = f"update {state.step}"
    if row:
        bar.unit += f" · {row['nats']:.3f} nats · {row['chars_per_s']:,.0f} chars/s · {row['bpc']:.3f} bits/char"
    with contextlib.suppress(OSError):
        bar.update(min(share, 1.0) - bar.n)
