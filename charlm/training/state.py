"""All that a run carries from step to step besides weights and optimizer state."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from charlm.layers import RecurrentState


@dataclass
class TrainState:
    """The numbers and tensors that the step and the loop carry on; numbers count from the start of the run.

    A checkpoint holds all of them: a field more or less needs a new VERSION (`charlm/runs.py`).
    """

    corpus_sha256: str
    scored: dict[str, Any] = field(default_factory=dict)
    """The validation text, as the fields of a `ScoredText`; empty without one."""
    earlier_symbols: int = 0
    """Symbols that the weights were trained on before this run. Such weights are scored at step 0."""
    earlier_texts: list[dict[str, Any]] = field(default_factory=list)
    """What they were trained on, see `charlm.inference.seen`."""
    step: int = 0
    epoch: int = 0
    """Whole passes over the train split."""
    position: int = 0
    """Where the next window starts in each stream."""
    symbols: int = 0
    """Characters or bytes that were read."""
    lr: float = 0.0
    """Learning rate of the last update."""
    elapsed_s: float = 0.0
    """Wall time of all sessions, with evaluations and checkpoints. The `Budget` writes this and the next one."""
    starting_s: float = 0.0
    """The time before the first update."""
    threads: int = 0
    """CPU threads of the last session. Another number rounds sums differently, and so do other kernels."""
    kernels: str = ""
    backend: str = ""
    """The backend of the last session: your own cell may lack a kernel where built-in cells have one."""
    rows: int = 0
    """Rows of metrics that belong to the steps so far."""
    best_nats: float | None = None
    """Score of the file `best`, nats per character; None without the file. See `TrainingLoop._take_best`."""
    best_step: int = 0
    is_best: bool = False
    """Whether these weights have the best validation score; an update clears it."""
    valid_nats: float | None = None
    evaluated_step: int | None = None
    """Step of the last scheduled evaluation; the final one is excluded because resuming repeats it."""
    sampled_step: int | None = None
    """Step of the last scheduled sample; resuming drops that of the end of the run."""
    evaluations_since_best: int = 0
    due: list[str] = field(default_factory=list)
    """What is still to be done at this step before the next update: see `TrainingLoop.actions_due`."""
    stop_reason: str = ""
    """The limit that ended the run. "" while it trains or evaluates, and after a signal."""
    rollbacks: int = 0
    """Returns to an earlier checkpoint after non-finite numbers. Each one halves the learning rate."""
    averaged_updates: int = 0
    """Updates in the running average of the weights."""
    interval_steps: int = 0
    """Updates since the last row of metrics, which took `interval_s`."""
    interval_s: float = 0.0

    objective_sum: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    """Cross-entropy, without penalties, of the updates since the last row of metrics: 0-d float64."""
    grad_norm: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Norm of the last gradient before clipping, 0-d."""
    recurrent: RecurrentState | None = None
    """Hidden state carried from the last window; None where an epoch starts."""

    def count_row(self) -> None:
        """Count the row of metrics for the updates so far, and reset the sums for the next one."""
        self.rows += 1
        self.objective_sum.zero_()
        self.interval_steps, self.interval_s = 0, 0.0

    @property
    def updating_s(self) -> float:
        """Time since the first update."""
        return self.elapsed_s - self.starting_s

    @property
    def lr_factor(self) -> float:
        """What rollbacks multiply the learning rate by."""
        return 0.5**self.rollbacks
