"""A run that has ended, as `charlm.train` returns it. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from charlm.errors import RunError
from charlm.runs import METRICS, read_log
from charlm.scored import ScoredText
from charlm.system.files import reason_of
from charlm.system.formatting import counted

if TYPE_CHECKING:
    import torch

    from charlm.inference.trained import TrainedModel


@dataclass(frozen=True)
class Run:
    """A run, and how it, or one session of it, ended. Scores are None without a validation split."""

    run_dir: str
    reason: str
    """The limit that was reached (max_steps, max_epochs, max_minutes, patience), or the name of a signal."""
    step: int
    chars: int
    elapsed_s: float
    valid_nats: float | None
    """Score of the last evaluation, nats per character."""
    best_nats: float | None
    best_step: int
    parameters: int
    best_nats_per_record: float | None = None
    """None unless the text has records."""
    scored: ScoredText | None = None
    """What the scores are of."""
    is_overfit: bool = False
    """Whether the training score fell after the best evaluation, and the text was read once or more."""

    @property
    def path(self) -> Path:
        """Its folder."""
        return Path(self.run_dir)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The complete rows of metrics.jsonl, see docs/training.md; RunError if the file cannot be read."""
        try:
            rows, damaged = read_log(self.path / METRICS)
            fault = f"{counted(damaged, 'line')} of it" if damaged else ""
        except OSError as error:
            rows, fault = [], reason_of(error)
        if fault:
            raise RunError(f"{self.path / METRICS}: cannot be read ({fault}); allowed: metrics that a run wrote")
        return rows

    def load(self, device: "str | torch.device" = "auto", precision: str = "auto") -> "TrainedModel":
        """The run's model, from its best checkpoint; see `charlm.load`."""
        from charlm.inference.loading import load

        return load(self.path, device, precision)
