"""Metrics of a run: metrics.jsonl, samples.jsonl and TensorBoard events."""

import contextlib
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.tensorboard.summary import hparams
from torch.utils.tensorboard.writer import SummaryWriter

from charlm.config.schema import TrainConfig
from charlm.errors import RunError
from charlm.inference.evaluation import Evaluation
from charlm.runs import CHARTS, METRICS, SAMPLES
from charlm.system.console import say
from charlm.system.files import replace_file, unlinked
from charlm.system.formatting import nats_to_bits, to_json
from charlm.training.sample import Sample, shaded
from charlm.training.state import TrainState


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
    return Row(
        step=state.step,
        chars=state.chars,
        split="train",
        loss=nats * _scored_steps(train),
        nats=nats,
        lr=state.lr,
        grad_norm=state.grad_norm.item(),
        chars_per_s=state.interval_bptt * train.batch_size / state.interval_s,
        elapsed_s=state.elapsed_s,
    )


def valid_row(state: TrainState, score: Evaluation, train: TrainConfig) -> Row:
    """The score of the validation split."""
    return Row(
        step=state.step,
        chars=state.chars,
        split="valid",
        loss=score.nats_per_char * _scored_steps(train),
        nats=score.nats_per_char,
        lr=state.lr,
        grad_norm=None,
        chars_per_s=score.chars_per_s,
        elapsed_s=state.elapsed_s,
    )


def _scored_steps(train: TrainConfig) -> int:
    """Time steps of a window of `bptt` that the loss sums over: loss / scored steps = nats per character."""
    return train.bptt if train.loss == "sum" else 1


class Tracker:
    """Writes metrics and TensorBoard events of one run.

    resume: (rows, step) for a resumed run, which keeps that many rows of metrics and the events up to that step.

    A fault such as a full disk does not end the run. It is printed once; rows wait for the next attempt, and
    TensorBoard misses events until it can be written again.
    """

    def __init__(self, folder: Path, resume: tuple[int, int] | None = None) -> None:
        self._folder = folder
        rows, step = resume or (0, 0)
        if resume:
            _keep_rows(folder / METRICS, step, rows)
            _keep_rows(folder / SAMPLES, step)
        self._charts = _Charts(folder, first_step=step + 1 if resume else None)
        self._metrics = Metrics(folder / METRICS)
        self._samples = Metrics(folder / SAMPLES)
        self._faults: set[str] = set()
        self._restore_hook = _leave_faults_to_callers()

    def rewind(self, rows: int, step: int) -> None:
        """Drop later rows, samples and events, as a run that resumes at `step` does."""
        with self._tolerating():
            before, self._metrics = self._metrics, self._metrics.rewound(step, rows)
            before.close()
        with self._tolerating():
            before, self._samples = self._samples, self._samples.rewound(step)
            before.close()
        with self._tolerating():
            before, self._charts = self._charts, _Charts(self._folder, first_step=step + 1)
            before.close()

    def record(self, row: Row) -> None:
        """Log one row to the file and to the charts."""
        with self._tolerating():
            self._metrics.append(row.as_json())
        with self._tolerating():
            self._charts.scalars(row)

    def note(self, event: str, step: int, **values: Any) -> dict[str, Any]:
        """Log an event as a row of metrics with its name as `split`, and as text; returns the row."""
        row = {"step": step, "split": event, **values}
        with self._tolerating():
            self._metrics.append(row)
        with self._tolerating():
            self._charts.text(event, to_json(values), step)
        return row

    def sample(self, sample: Sample, step: int) -> None:
        """Log a text sample with its surprise."""
        with self._tolerating():
            self._samples.append(sample.as_json(step))
        with self._tolerating():
            self._charts.sample(sample, step)

    def finish(self, options: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        """Log options and final scores for TensorBoard's HParams page."""
        if not self._charts.writes:
            return
        # The page shows booleans as 1.0000 and 0.0000 unless they are text.
        plain = {k: v if type(v) in (int, float, str) else to_json(v) for k, v in options.items()}
        with self._tolerating(), SummaryWriter(str(self._folder)) as writer:
            for summary in hparams(plain, dict(scores)):
                writer._get_file_writer().add_summary(summary)
            for tag, value in scores.items():
                writer.add_scalar(tag, value)

    def close(self) -> None:
        """Close all files."""
        with self._tolerating():
            self._metrics.close()
        with self._tolerating():
            self._samples.close()
        with self._tolerating():
            self._charts.close()
        self._restore_hook()

    @contextlib.contextmanager
    def _tolerating(self) -> Iterator[None]:
        """Report an OSError of the block, once per cause, and continue."""
        try:
            yield
        except OSError as error:
            fault = error.strerror or str(error)
            if fault not in self._faults:
                say("log", f"{self._folder}: cannot be written ({fault}); training goes on")
            self._faults.add(fault)


class NoTracker(Tracker):
    """The tracker of processes that do not write."""

    def __init__(self) -> None:
        pass

    def rewind(self, rows: int, step: int) -> None:
        pass

    def record(self, row: Row) -> None:
        pass

    def note(self, event: str, step: int, **values: Any) -> dict[str, Any]:
        return {}

    def sample(self, sample: Sample, step: int) -> None:
        pass

    def finish(self, options: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


class Metrics:
    """Appends JSON lines to a file. Lines that cannot be written wait for the next attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "ab", buffering=0, opener=unlinked)  # noqa: SIM115
        self._waiting = b""

    def append(self, row: Mapping[str, Any]) -> None:
        self._waiting += to_json(row).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        while self._waiting:
            written = self._file.write(self._waiting)
            self._waiting = self._waiting[written:]

    def rewound(self, step: int, rows: int | None = None) -> "Metrics":
        """Keep the first lines only, see `_keep_rows`; returns what appends to these. This one remains to be closed."""
        self.flush()
        _keep_rows(self.path, step, rows)
        return Metrics(self.path)

    def close(self) -> None:
        with self._file:
            self.flush()


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl, without an incomplete last one; RunError if it cannot be read."""
    try:
        lines = (folder / METRICS).read_bytes().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / METRICS}: cannot be read ({error}); allowed: that of a run") from None


class _Charts:
    """TensorBoard events, in one folder per split: TensorBoard draws equal tags from several folders into one chart.

    A writer that fails is dropped. A new one makes a new file, so it is tried only every `_RETRY_S`.
    """

    def __init__(self, folder: Path, first_step: int | None) -> None:
        self._folder = folder
        self._first_step = first_step
        self._retry_s = 0.0
        self._writers: dict[str, SummaryWriter] = {}
        self.writes = not any("\udc80" <= character <= "\udcff" for character in str(folder.absolute()))
        if not self.writes:
            say("log", f"{folder}: TensorBoard needs names in UTF-8; training goes on without its events")
            return
        for split in CHARTS:
            self._writer(split)

    def _writer(self, split: str) -> SummaryWriter:
        if split not in self._writers:
            self._writers[split] = SummaryWriter(str(self._folder / split), purge_step=self._first_step)
        return self._writers[split]

    def _write(self, split: str, step: int, write: Callable[[SummaryWriter], None]) -> None:
        if not self.writes or time.monotonic() < self._retry_s:
            return
        try:
            write(self._writer(split))
        except OSError:
            if failed := self._writers.pop(split, None):
                with contextlib.suppress(OSError):
                    failed.close()
            self._first_step = step + 1
            self._retry_s = time.monotonic() + _RETRY_S
            raise

    def scalars(self, row: Row) -> None:
        scalars = {
            "score/loss": row.loss,
            "score/nats_per_char": row.nats,
            "score/bits_per_char": nats_to_bits(row.nats),
        }
        if row.split == "train":
            scalars |= {
                "training/lr": row.lr,
                "training/grad_norm": row.grad_norm,
                "training/chars_per_s": row.chars_per_s,
            }

        def write(writer: SummaryWriter) -> None:
            for tag, value in scalars.items():
                writer.add_scalar(tag, value, row.step)

        self._write(row.split, row.step, write)

    def text(self, tag: str, text: str, step: int) -> None:
        """Log text, indented so that TensorBoard's Markdown shows it unchanged."""
        indented = "\n".join("    " + line for line in text.splitlines())
        self._write("train", step, lambda writer: writer.add_text(tag, indented, step))

    def sample(self, sample: Sample, step: int) -> None:
        """Log a sample, shaded by its surprise."""
        self._write("train", step, lambda writer: writer.add_text("sample", shaded(sample), step))

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # closes each one even if another fails
            while self._writers:
                stack.callback(self._writers.popitem()[1].close)


_RETRY_S = 60.0


def _leave_faults_to_callers() -> Callable[[], None]:
    """Silence the OSErrors of TensorBoard's threads: the writer raises them again at the next event.

    Returns a function that undoes it.
    """
    others = threading.excepthook

    def report(arguments: threading.ExceptHookArgs) -> None:
        of_writer = type(arguments.thread).__module__.startswith("tensorboard.")
        if not (of_writer and isinstance(arguments.exc_value, OSError)):
            others(arguments)

    def restore() -> None:
        if threading.excepthook is report:
            threading.excepthook = others

    threading.excepthook = report
    return restore


def _keep_rows(file: Path, step: int, rows: int | None = None) -> None:
    """Keep at most `rows` rows, up to the first after `step` or an incomplete line. A resumed run writes the rest."""
    kept: list[bytes] = []
    if file.exists():
        with open(file, "rb", opener=unlinked) as lines:
            kept += itertools.takewhile(lambda line: _step_of(line) <= step, itertools.islice(lines, rows))
        replace_file(file, b"".join(kept))
    if rows is not None and len(kept) < rows:
        say("log", f"{file}: found {len(kept)} of {rows} rows before step {step + 1}; the others are lost")


def _step_of(line: bytes) -> float:
    """Step of a row; infinity for a line that is not a row."""
    try:
        return float(json.loads(line)["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, TypeError, KeyError, RecursionError):
        return math.inf
