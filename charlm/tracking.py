"""What a run's folder tells: metrics.jsonl, TensorBoard events, and the progress bar."""

import contextlib
import functools
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.tensorboard.summary import hparams
from torch.utils.tensorboard.writer import SummaryWriter
from tqdm import tqdm

from charlm.terminal import one_line
from charlm.units import format_duration, nats_to_bits

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Row:
    """One line of metrics.jsonl."""

    step: int
    """Updates made."""
    chars: int
    """Characters trained on so far."""
    split: str
    """train: mean since the last line; valid: the whole split."""
    loss: float
    """As optimised: nats summed over the scored steps of a window, mean over its streams."""
    nats: float
    """Per character."""
    lr: float
    grad_norm: float | None
    """Before clipping, of the last step; none for valid."""
    chars_per_s: float
    elapsed_s: float

    def as_json(self) -> dict[str, Any]:
        """The line: the fields in their order, and bits per character behind nats."""
        row: dict[str, Any] = {}
        for name, value in vars(self).items():
            row[name] = value
            if name == "nats":
                row["bpc"] = nats_to_bits(self.nats)
        return row


class Tracker:
    """Writes metrics and TensorBoard events of one run.

    `resume` says what a resumed run keeps of what it finds: so many rows of metrics, and events up to that step.
    What cannot be written, on a full disk say, does not end the run: that is said once, the rows wait for the next
    attempt, and TensorBoard goes without until it works again.
    """

    def __init__(self, folder: Path, resume: tuple[int, int] | None = None) -> None:
        self._folder = folder
        self._metrics, self._charts = _open(folder, resume)
        self._fault = ""

    def rewind(self, rows: int, step: int) -> None:
        """Keep as much as a run resumed there would."""
        self.close()
        self._metrics, self._charts = _open(self._folder, (rows, step))

    def record(self, row: Row) -> None:
        """Log one row to the file and to the charts."""
        with self._tolerating():
            self._metrics.append(row.as_json())
        with self._tolerating():
            self._charts.scalars(row)

    def note(self, event: str, step: int, **values: Any) -> None:
        """Log that something has happened: a line of metrics whose `split` is the event's name, and a text."""
        with self._tolerating():
            self._metrics.append({"step": step, "split": event, **values})
        with self._tolerating():
            self._charts.text(event, json.dumps(values), step)

    def sample(self, text: str, step: int) -> None:
        """Log a text sample."""
        with self._tolerating():
            self._charts.text("sample", text, step)

    def finish(self, options: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        """Log the options beside the final scores, for TensorBoard's HParams page."""
        # The page shows true and false as 1.0000 and 0.0000 unless they are text.
        plain = {k: v if type(v) in (int, float, str) else json.dumps(v) for k, v in options.items()}
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
            self._charts.close()

    @contextlib.contextmanager
    def _tolerating(self) -> Iterator[None]:
        """Say what an OSError of the block was, once for each cause, and go on."""
        try:
            yield
        except OSError as error:
            fault = error.strerror or str(error)
            if fault != self._fault:
                say(f"log      {self._folder}: cannot be written ({fault}); training goes on")
            self._fault = fault


def _open(folder: Path, resume: tuple[int, int] | None) -> tuple["Metrics", "_Charts"]:
    rows, step = resume or (0, 0)
    if resume:
        _keep_rows(folder / METRICS, rows)
    return Metrics(folder / METRICS), _Charts(folder, first_step=step + 1 if resume else None)


class Metrics:
    """Appends JSON lines to a file; what cannot be written waits."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._waiting = b""

    def append(self, row: Mapping[str, Any]) -> None:
        self._waiting += json.dumps(row).encode() + b"\n"
        self._write()

    def _write(self) -> None:
        while self._waiting:
            written = self._file.write(self._waiting)
            self._waiting = self._waiting[written:]

    def close(self) -> None:
        with self._file:
            self._write()


class _Charts:
    """TensorBoard's events. One folder a split: it draws tags of one name from several folders into one chart.

    A writer that failed writes no more: a new one is tried at the next event.
    """

    def __init__(self, folder: Path, first_step: int | None) -> None:
        _leave_faults_to_callers()
        self._folder = folder
        self._first_step = first_step
        self._writers: dict[str, SummaryWriter] = {}
        for split in ("train", "valid"):
            self._writer(split)

    def _writer(self, split: str) -> SummaryWriter:
        if split not in self._writers:
            self._writers[split] = SummaryWriter(str(self._folder / split), purge_step=self._first_step)
        return self._writers[split]

    @contextlib.contextmanager
    def _writing(self, split: str, step: int) -> Iterator[SummaryWriter]:
        try:
            yield self._writer(split)
        except OSError:
            self._writers.pop(split, None)
            self._first_step = step + 1
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
        with self._writing(row.split, row.step) as writer:
            for tag, value in scalars.items():
                writer.add_scalar(tag, value, row.step)

    def text(self, tag: str, text: str, step: int) -> None:
        """Indented, so that TensorBoard's Markdown shows it as it stands."""
        with self._writing("train", step) as writer:
            writer.add_text(tag, "\n".join("    " + line for line in text.splitlines()), step)

    def close(self) -> None:
        for split, writer in list(self._writers.items()):
            del self._writers[split]
            writer.close()


@functools.cache
def _leave_faults_to_callers() -> None:
    """No tracebacks of TensorBoard's threads: what ended one is raised at the next event."""
    others = threading.excepthook

    def report(arguments: threading.ExceptHookArgs) -> None:
        of_writer = type(arguments.thread).__module__.startswith("tensorboard.")
        if not (of_writer and isinstance(arguments.exc_value, OSError)):
            others(arguments)

    threading.excepthook = report


def _keep_rows(file: Path, rows: int) -> None:
    """Keep the first rows: a resumed run writes the later ones again."""
    if file.exists():
        with file.open(encoding="utf-8") as lines:
            kept = list(itertools.islice(lines, rows))
        replace_text(file, "".join(kept))


def replace_text(file: Path, text: str) -> None:
    """Write a file anew, whole or not at all."""
    temporary = file.with_name(f".{file.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


class Progress:
    """A bar on stderr over the run's share done, quiet where stderr is no terminal."""

    def __init__(self) -> None:
        self._bar = tqdm(
            total=1.0, file=sys.stderr, disable=None, leave=False, bar_format="{percentage:3.0f}%|{bar:20}| {desc}"
        )
        self._note = ""
        self._shown_s = 0.0

    def note(self, row: Row) -> None:
        """Show this row's scores from now on."""
        self._note = f" · {row.nats:.3f} nats · {nats_to_bits(row.nats):.3f} bits/char · {row.chars_per_s:,.0f} chars/s"

    def show(self, step: int, share: float, elapsed_s: float) -> None:
        """Bring the bar to `share` of the run, 0 to 1, if it was not moved just before."""
        now_s = time.perf_counter()
        if self._bar.disable or now_s - self._shown_s < _REFRESH_S:
            return
        self._shown_s = now_s
        left = format_duration(elapsed_s * (1 - share) / share) if share > 0 else "?"
        self._bar.n = min(share, 1.0)
        self._bar.set_description_str(f"step {step}{self._note} · {left} left")

    def close(self) -> None:
        self._bar.close()


_REFRESH_S = 0.2


def say(message: str) -> None:
    """A line on stderr, above the progress bar where there is one."""
    tqdm.write(one_line(message), file=sys.stderr)
