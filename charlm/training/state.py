"""All that a run carries from step to step besides weights, optimizer state and random state."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_origin, get_type_hints

import torch
from torch import Tensor

from charlm.layers import RecurrentState
from charlm.system.process_group import ProcessGroup


@dataclass
class TrainState:
    """The numbers and tensors that the step and the loop carry on; all but `_TENSORS` are JSON."""

    corpus_sha256: str
    earlier_chars: int = 0
    """Characters that the weights were trained on before this run. Such weights are scored at step 0."""
    step: int = 0
    """Updates so far."""
    epoch: int = 0
    """Whole passes over the train split."""
    position: int = 0
    """Where the next window starts in each stream."""
    chars: int = 0
    """Characters read so far."""
    lr: float = 0.0
    """Learning rate of the last update."""
    elapsed_s: float = 0.0
    """Wall time of all sessions, with evaluations and checkpoints. The `Budget` writes this and the next two."""
    starting_s: float = 0.0
    """The time before the first update."""
    ending_s: float = 0.0
    """What the last evaluation and checkpoint are expected to take."""
    threads: int = 0
    """CPU threads of the last session. Another number rounds sums differently."""
    kernels: str = ""
    """CPU kernels of the last session, see `used_kernels`. Others round differently."""
    backend: str = ""
    """What computed the layers in the last session: a cell of one's own may lack a kernel where others have theirs."""
    rows: int = 0
    """Rows of metrics that belong to the steps so far."""
    best_nats: float | None = None
    """Lowest validation score so far, nats per character."""
    best_step: int = 0
    valid_nats: float | None = None
    """Score of the last evaluation."""
    evaluated_step: int | None = None
    """Step of the last scheduled evaluation; the final one is excluded because resuming repeats it."""
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
    """Updates since the last row of metrics."""
    interval_s: float = 0.0
    """Seconds spent in them."""

    objective_sum: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float64))
    """Cross-entropy, without penalties, of the updates since the last row of metrics: 0-d float64."""
    grad_norm: Tensor = field(default_factory=lambda: torch.zeros(()))
    """Norm of the last gradient before clipping, 0-d."""
    recurrent: RecurrentState | None = None
    """Hidden state carried from the last window; None where an epoch starts."""

    def count_update(self, steps: int, batch_size: int, lr: float, seconds: float) -> None:
        """Count an update on a window of steps × batch_size characters."""
        self.lr = lr
        self.step += 1
        self.chars += steps * batch_size
        self.position += steps
        self.interval_steps += 1
        self.interval_s += seconds

    def count_row(self) -> None:
        """Count the row of metrics for the updates so far, and reset the sums for the next one."""
        self.rows += 1
        self.objective_sum.zero_()
        self.interval_steps, self.interval_s = 0, 0.0

    def take_score(self, nats: float) -> None:
        """Note a validation score."""
        self.valid_nats = nats
        if self.best_nats is None or nats < self.best_nats:
            self.best_nats, self.best_step = nats, self.step

    def count_evaluation(self) -> None:
        """Count a scheduled evaluation, whose row of metrics a resumed run keeps."""
        self.rows += 1
        self.evaluated_step = self.step
        self.evaluations_since_best = 0 if self.is_best else self.evaluations_since_best + 1

    @property
    def is_best(self) -> bool:
        """Whether this step has the best validation score so far."""
        return self.best_nats is not None and self.best_step == self.step

    @property
    def lr_factor(self) -> float:
        """What rollbacks multiply the learning rate by."""
        return 0.5**self.rollbacks

    def progress(self) -> dict[str, Any]:
        """The numbers, as JSON."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _TENSORS}

    def tensors(self, group: ProcessGroup) -> dict[str, Tensor]:
        """The tensors, by name; the hidden state of the streams of all processes, which call this together."""
        states = enumerate(self.recurrent or ())
        numbered = {f"recurrent.{index}": group.all_gather(state, dim=1) for index, state in states}
        return {"objective_sum": self.objective_sum, "grad_norm": self.grad_norm, **numbered}

    @classmethod
    def restored(cls, progress: Mapping[str, Any], tensors: Mapping[str, Tensor], device: torch.device) -> "TrainState":
        """The inverse of `progress` and `tensors`; ValueError, TypeError or KeyError for what they cannot give."""
        for name, kind in get_type_hints(cls).items():
            if name not in _TENSORS and not isinstance(progress[name], list if get_origin(kind) is list else kind):
                raise ValueError(f"{name}: found {progress[name]!r:.40}")
        moved = {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
        objective_sum, grad_norm = moved.pop("objective_sum"), moved.pop("grad_norm")
        recurrent = tuple(moved[f"recurrent.{index}"] for index in range(len(moved))) or None
        return cls(**progress, objective_sum=objective_sum, grad_norm=grad_norm, recurrent=recurrent)


_TENSORS = ("objective_sum", "grad_norm", "recurrent")
