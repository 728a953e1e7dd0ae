"""What a run's folder tells: metrics.jsonl, TensorBoard events, and the progress bar."""

import json
import sys
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
        row = dict(vars(self))
        names = list(row)
        row["bpc"] = nats_to_bits(self.nats)
        names.insert(names.index("nats") + 1, "bpc")
        return {name: row[name] for name in names}


class Tracker:
    """Writes metrics and TensorBoard events of one run; `resume_step` drops what was logged after that step."""

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        if resume_step is not None:
            _drop_rows_after(folder / METRICS, resume_step)
        purge_step = None if resume_step is None else resume_step + 1
        self._metrics = (folder / METRICS).open("a", encoding="utf-8")
        # One folder a split: TensorBoard draws tags of one name from several folders into one chart.
        self._writers = {
            split: SummaryWriter(str(folder / split), purge_step=purge_step) for split in ("train", "valid")
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
        self._metrics.close()
        for writer in self._writers.values():
            writer.close()


def _drop_rows_after(file: Path, step: int) -> None:
    """Keep the rows up to `step`: a resumed run writes the later ones again. A torn last line goes too."""
    if not file.exists():
        return
    kept = []
    for line in file.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            if line.endswith("\n") and json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue
    temporary = file.with_suffix(".tmp")
    temporary.write_text("".join(kept), encoding="utf-8")
    temporary.replace(file)


class Progress:
    """A bar on stderr over the run's share done, quiet where stderr is no terminal."""

    def __init__(self) -> None:
        self._bar = tqdm(
            total=1.0, file=sys.stderr, disable=None, leave=False, bar_format="{percentage:3.0f}%|{bar:20}| {postfix}"
        )

    def show(self, row: Row, share: float) -> None:
        """Update the bar with the row of the last log; `share` of the run, 0 to 1, is done."""
        left = format_duration(row.elapsed_s * (1 - share) / share) if share > 0 else "?"
        self._bar.set_postfix_str(
            f"step {row.step} · {row.nats:.3f} nats · {nats_to_bits(row.nats):.3f} bits/char · "
            f"{row.chars_per_s:,.0f} chars/s · {left} left",
            refresh=False,
        )
        self._bar.n = min(share, 1.0)
        self._bar.refresh()

    def close(self) -> None:
        self._bar.close()


def say(message: str) -> None:
    """A line on stderr, above the progress bar where there is one."""
    tqdm.write(message, file=sys.stderr)
