"""Metrics of a run: metrics.jsonl, samples.jsonl and TensorBoard events."""

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charlm.config.schema import TrainConfig
from charlm.errors import RunError
from charlm.inference.evaluation import Evaluation
from charlm.runs import METRICS, SAMPLES
from charlm.system.console import say
from charlm.system.files import replace_file, unlinked
from charlm.system.formatting import nats_to_bits, to_json
from charlm.training.sample import Sample, shaded
from charlm.training.state import TrainState
from charlm.training.tensorboard import Charts


@dataclass(frozen=True)
class Row:
    """One line of metrics.jsonl."""

    step: int
    """Updates so far."""
    chars: int
    """Characters trained on so far."""
    split: str
    """train: mean since the last row; valid: the whole split."""
    loss: float
    """Training objective without penalties: nats per character × scored steps in a window of `bptt`."""
    nats: float
    """Nats per character."""
    lr: float
    grad_norm: float | None
    """Norm of the last gradient before clipping; None for valid."""
    chars_per_s: float
    elapsed_s: float

    def as_json(self) -> dict[str, Any]:
        """The fields in order, with bits per character after nats."""
        row: dict[str, Any] = {}
        for name, value in vars(self).items():
            row[name] = value
            if name == "nats":
                row["bpc"] = nats_to_bits(self.nats)
        return row


def train_row(state: TrainState, train: TrainConfig) -> Row:
    """The mean over the updates since the last row."""
    steps = state.interval_bptt if train.loss == "sum" else state.interval_steps
    nats = state.objective_sum.item() / steps
    chars_per_s = state.interval_bptt * train.batch_size / state.interval_s
    return _row(state, train, "train", nats, state.grad_norm.item(), chars_per_s)


def valid_row(state: TrainState, score: Evaluation, train: TrainConfig) -> Row:
    """The score of the validation split."""
    return _row(state, train, "valid", score.nats_per_char, None, score.chars_per_s)


def _row(
    state: TrainState, train: TrainConfig, split: str, nats: float, grad_norm: float | None, chars_per_s: float
) -> Row:
    loss = nats * (train.bptt if train.loss == "sum" else 1)
    return Row(state.step, state.chars, split, loss, nats, state.lr, grad_norm, chars_per_s, state.elapsed_s)


class Tracker:
    """Writes the metrics, samples and TensorBoard events of a run; nothing unless `writes`.

    resume: (rows, step) for a resumed run, which keeps that many rows of metrics and the events up to that step.

    A fault such as a full disk does not end the run. It is printed once; rows wait for the next attempt, and
    TensorBoard misses events until it can be written again.
    """

    def __init__(self, folder: Path, resume: tuple[int, int] | None = None, *, writes: bool = True) -> None:
        self._folder, self._writes = folder, writes
        self._faults: set[str] = set()
        if not writes:
            return
        rows, step = resume or (0, 0)
        if resume:
            _truncate(folder / METRICS, step, rows)
            _truncate(folder / SAMPLES, step)
        self._charts = Charts(folder, first_step=step + 1 if resume else None)
        self._metrics = JsonLines(folder / METRICS)
        self._samples = JsonLines(folder / SAMPLES)

    def rewind(self, rows: int, step: int) -> None:
        """Drop later rows, samples and events, as a run that resumes at `step` does."""
        self._attempt(lambda: self._metrics.rewind(step, rows))
        self._attempt(lambda: self._samples.rewind(step))
        self._attempt(lambda: self._charts.begin_files(step + 1))

    def record(self, row: Row) -> None:
        """Log one row to the file and to the charts."""
        self._attempt(lambda: self._metrics.append(row.as_json()))
        scalars = {
            "score/loss": row.loss,
            "score/nats_per_char": row.nats,
            "score/bits_per_char": nats_to_bits(row.nats),
        }
        if row.grad_norm is not None:
            scalars |= {"training/lr": row.lr, "training/grad_norm": row.grad_norm}
            scalars["training/chars_per_s"] = row.chars_per_s
        self._attempt(lambda: self._charts.scalars(row.split, row.step, scalars))

    def note(self, row: dict[str, Any]) -> None:
        """Log an event, which is named by the row's `split`, as a row of metrics and as text."""
        self._attempt(lambda: self._metrics.append(row))
        values = {name: value for name, value in row.items() if name not in ("step", "split")}
        # Indented, so that TensorBoard's Markdown shows it unchanged.
        self._attempt(lambda: self._charts.text(row["split"], f"    {to_json(values)}", row["step"]))

    def sample(self, sample: Sample, step: int) -> None:
        """Log a text sample with its surprise."""
        self._attempt(lambda: self._samples.append(sample.as_json(step)))
        self._attempt(lambda: self._charts.text("sample", shaded(sample), step))

    def finish(self, options: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        """Log options and final scores for TensorBoard's HParams page."""
        self._attempt(lambda: self._charts.hparams(options, scores))

    def close(self) -> None:
        self._attempt(lambda: self._metrics.close())
        self._attempt(lambda: self._samples.close())

    def _attempt(self, write: Callable[[], object]) -> None:
        """Report an OSError, once per cause, and go on."""
        if not self._writes:
            return
        try:
            write()
        except OSError as error:
            fault = error.strerror or str(error)
            if fault not in self._faults:
                say("log", f"{self._folder}: cannot be written ({fault}); training goes on")
            self._faults.add(fault)


class JsonLines:
    """Appends JSON lines to a file. Lines that cannot be written wait for the next attempt."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = self._opened()
        self._waiting = b""

    def _opened(self) -> Any:
        return open(self._path, "ab", buffering=0, opener=unlinked)

    def append(self, row: Mapping[str, Any]) -> None:
        self._waiting += to_json(row).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        while self._waiting:
            written = self._file.write(self._waiting)
            self._waiting = self._waiting[written:]

    def rewind(self, step: int, rows: int | None = None) -> None:
        """Keep the first lines only, see `_truncate`."""
        self._flush()
        _truncate(self._path, step, rows)
        before, self._file = self._file, self._opened()
        before.close()

    def close(self) -> None:
        with self._file:
            self._flush()


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl, without an incomplete last one; RunError if it cannot be read."""
    try:
        lines = (folder / METRICS).read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / METRICS}: cannot be read ({error}); allowed: that of a run") from None


def _truncate(file: Path, step: int, rows: int | None = None) -> None:
    """Drop all rows behind the first `rows`, and behind the first that is incomplete or of a later step."""
    lines: list[bytes] = []
    if file.exists():
        with open(file, "rb", opener=unlinked) as opened:
            lines += itertools.takewhile(lambda line: _step_of(line) <= step, itertools.islice(opened, rows))
        replace_file(file, b"".join(lines))
    if rows is not None and len(lines) < rows:
        say("log", f"{file}: found {len(lines)} of {rows} rows before step {step + 1}; the others are lost")


def _step_of(line: bytes) -> float:
    """Step of a row; infinity for a line that is not a row."""
    try:
        return float(json.loads(line)["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, TypeError, KeyError, RecursionError):
        return math.inf
