"""What a run's folder tells: metrics.jsonl, TensorBoard events, and the progress bar."""

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.tensorboard.summary import hparams
from torch.utils.tensorboard.writer import SummaryWriter
from tqdm import tqdm

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
    """

    def __init__(self, folder: Path, resume: tuple[int, int] | None = None) -> None:
        rows, step = resume or (0, 0)
        if resume:
            _keep_rows(folder / METRICS, rows)
        self._metrics = (folder / METRICS).open("a", encoding="utf-8")
        # One folder a split: TensorBoard draws tags of one name from several folders into one chart.
        self._writers = {
            split: SummaryWriter(str(folder / split), purge_step=step + 1 if resume else None)
            for split in ("train", "valid")
        }
        self._folder = folder

    def record(self, row: Row) -> None:
        """Log one row to the file and to the charts."""
        self._metrics.write(json.dumps(row.as_json()) + "\n")
        self._metrics.flush()
        writer = self._writers[row.split]
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
        for tag, value in scalars.items():
            writer.add_scalar(tag, value, row.step)

    def sample(self, text: str, step: int) -> None:
        """Log a text sample; indented, so that TensorBoard's Markdown shows it as it stands."""
        self._writers["train"].add_text("sample", "\n".join("    " + line for line in text.splitlines()), step)

    def finish(self, options: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        """Log the options beside the final scores, for TensorBoard's HParams page."""
        # The page shows true and false as 1.0000 and 0.0000 unless they are text.
        plain = {k: v if type(v) in (int, float, str) else json.dumps(v) for k, v in options.items()}
        with SummaryWriter(str(self._folder)) as writer:
            for summary in hparams(plain, dict(scores)):
                writer._get_file_writer().add_summary(summary)
            for tag, value in scores.items():
                writer.add_scalar(tag, value)

    def close(self) -> None:
        """Close all files; what cannot be written any more was reported when it was recorded."""
        for file in (self._metrics, *self._writers.values()):
            with contextlib.suppress(OSError):
                file.close()


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
    tqdm.write(message, file=sys.stderr)
