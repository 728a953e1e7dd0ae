"""All that a run carries from step to step besides weights and optimizer state; a checkpoint of all."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, get_origin, get_type_hints

import torch
from torch import Tensor

from charlm.checkpoint import Checkpoint, digest
from charlm.errors import CheckpointError
from charlm.layers import RecurrentState
from charlm.model import load_weights
from charlm.native.loading import used_kernels
from charlm.scored import ScoredText

if TYPE_CHECKING:
    from charlm.training.step import Trainer


@dataclass
class TrainState:
    """The numbers and tensors that the step and the loop carry on; numbers count from the start of the run.

    A checkpoint holds them all, and resuming needs them all: a new field needs a new VERSION in `charlm.runs`.
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
    """Wall time of all sessions, with evaluations and checkpoints. The `Budget` writes this and the next two."""
    starting_s: float = 0.0
    """The time before the first update."""
    ending_s: float = 0.0
    """What the last evaluation and checkpoint are expected to take."""
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
    def lr_factor(self) -> float:
        """What rollbacks multiply the learning rate by."""
        return 0.5**self.rollbacks


_TENSORS = ("objective_sum", "grad_norm", "recurrent")
"""Fields of a `TrainState` that are no JSON."""


def take_snapshot(trainer: "Trainer") -> Checkpoint:
    """A checkpoint of all; on the CPU it shares the trainer's memory. All processes call this together."""

    def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.detach().cpu() for name, tensor in tensors.items()}

    state = trainer.state
    carried = {"objective_sum": state.objective_sum, "grad_norm": state.grad_norm, "rng.cpu": torch.get_rng_state()}
    for index, state_LBH in enumerate(state.recurrent or ()):
        carried[f"recurrent.{index}"] = trainer.group.all_gather(state_LBH, dim=1)
    if trainer.device.type == "cuda":
        carried["rng.cuda"] = torch.cuda.get_rng_state(trainer.device)
    return Checkpoint(
        config=trainer.config,
        vocabulary=trainer.vocabulary,
        weights=on_cpu(dict(trainer.model.named_parameters())),
        averaged=on_cpu({} if trainer.averaged is None else dict(trainer.averaged.named_parameters())),
        optimizer=on_cpu(_optimizer_tensors(trainer)),
        carried=on_cpu(carried),
        progress={f.name: getattr(state, f.name) for f in fields(state) if f.name not in _TENSORS},
    )


def fingerprint(checkpoint: Checkpoint) -> str:
    """Equal for processes that train alike: a digest of weights, random state and progress."""
    names = ("step", "epoch", "position", "elapsed_s", "best_nats", "evaluations_since_best")
    progress = {name: repr(checkpoint.progress[name]) for name in names}
    random = {name: state for name, state in checkpoint.carried.items() if name.startswith("rng.")}
    return digest(progress, {**checkpoint.weights, **random})


def restore_snapshot(trainer: "Trainer", checkpoint: Checkpoint) -> None:
    """Load weights, optimizer state, random state and progress; CheckpointError where they do not fit the run."""
    try:
        _restore_optimizer(trainer, checkpoint.optimizer)
        state = _restored_state(trainer, checkpoint)
        scored = ScoredText.from_json(state.scored)
        seen = scored.seen if scored else None
        load_weights(trainer.model, checkpoint.weights)
        if trainer.averaged is not None:
            load_weights(trainer.averaged, checkpoint.averaged or checkpoint.weights)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint: its training state does not fit ({error}); use another one") from None
    state.threads, state.kernels, state.stop_reason = torch.get_num_threads(), used_kernels(), ""
    state.backend = trainer.state.backend
    state.scored = trainer.state.scored | {"seen": seen} if trainer.state.scored else {}
    trainer.state = state
    trainer.forget_divergence()


def _restored_state(trainer: "Trainer", checkpoint: Checkpoint) -> TrainState:
    """The checkpoint's state; restores torch's random state too."""
    progress, device = checkpoint.progress, trainer.device
    for name, kind in get_type_hints(TrainState).items():
        kind = get_origin(kind) if get_origin(kind) in (list, dict) else kind
        if name not in _TENSORS and not isinstance(progress[name], kind):
            raise ValueError(f"{name}: found {progress[name]!r:.40}")
    carried = {name: tensor.clone() for name, tensor in checkpoint.carried.items()}
    torch.set_rng_state(carried.pop("rng.cpu"))
    cuda_state = carried.pop("rng.cuda", None)
    if device.type == "cuda" and cuda_state is not None:
        torch.cuda.set_rng_state(cuda_state, device)
    carried = {name: tensor.to(device) for name, tensor in carried.items()}
    objective_sum, grad_norm = carried.pop("objective_sum"), carried.pop("grad_norm")
    recurrent = tuple(carried[f"recurrent.{index}"] for index in range(len(carried))) or None
    if progress["position"] >= trainer.streams.length:
        raise ValueError(f"position: found {progress['position']}; a stream has {trainer.streams.length}")
    if recurrent is not None:
        states = recurrent, trainer.model.zero_state(trainer.config.train.batch_size)
        found, needed = ([(tensor.dtype, tensor.shape) for tensor in each] for each in states)
        if found != needed:  # kernels would read past their end
            raise ValueError(f"recurrent: found {found}; the model has {needed}")
        recurrent = tuple(trainer.group.shard.of(state_LBH, dim=1) for state_LBH in recurrent)
    return TrainState(**progress, objective_sum=objective_sum, grad_norm=grad_norm, recurrent=recurrent)


def _restore_optimizer(trainer: "Trainer", tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors into the optimizer's state. Momentum that is new starts from zero. Changes the weights."""
    trainer.optimizer.state.clear()
    if not tensors:  # before the first step
        return
    for parameter in trainer.parameters:
        parameter.grad = torch.zeros_like(parameter)
    trainer.optimizer.step()  # makes the state
    for name, tensor in _optimizer_tensors(trainer).items():
        if name.startswith("momentum_buffer/") and name not in tensors:
            tensor.zero_()
        else:
            tensor.copy_(tensors[name])


def _optimizer_tensors(trainer: "Trainer") -> dict[str, Tensor]:
    return {
        f"{key}/{name}": value
        for name, parameter in trainer.model.named_parameters()
        for key, value in trainer.optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
