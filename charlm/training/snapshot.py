"""All of a trainer ↔ a checkpoint."""

from collections.abc import Mapping
from typing import get_origin, get_type_hints

import torch
from torch import Tensor

from charlm.checkpoint import Checkpoint, digest
from charlm.errors import CheckpointError
from charlm.model import load_weights, named_weights
from charlm.scored import ScoredText
from charlm.system.device import random_state, set_random_state
from charlm.training.optimizer import step_and_average
from charlm.training.state import TrainState
from charlm.training.step import Trainer

_TENSORS = ("objective_sum", "grad_norm", "recurrent")
"""Fields of a `TrainState` that are no JSON."""
_GENERATORS = ("rng.cpu", "rng.cuda")
"""Names in a checkpoint of what `random_state` gives."""


def take_snapshot(trainer: Trainer) -> Checkpoint:
    """A checkpoint of all; on the CPU it shares the trainer's memory. All processes call this together."""

    def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.detach().cpu() for name, tensor in tensors.items()}

    state = trainer.state
    carried = {"objective_sum": state.objective_sum, "grad_norm": state.grad_norm}
    for index, state_LBH in enumerate(state.recurrent or ()):
        carried[f"recurrent.{index}"] = trainer.group.all_gather(state_LBH, dim=1)
    carried |= dict(zip(_GENERATORS, random_state(trainer.device), strict=False))
    return Checkpoint(
        config=trainer.config,
        vocabulary=trainer.corpus.vocabulary,
        weights=on_cpu(named_weights(trainer.model)),
        averaged=on_cpu({} if trainer.averaged is None else named_weights(trainer.averaged)),
        optimizer=on_cpu(_optimizer_tensors(trainer)),
        carried=on_cpu(carried),
        progress={name: value for name, value in vars(state).items() if name not in _TENSORS},
    )


def fingerprint(checkpoint: Checkpoint) -> str:
    """Equal for processes that train alike: a digest of weights, random state and progress."""
    names = ("step", "epoch", "position", "elapsed_s", "best_nats", "evaluations_since_best")
    progress = {name: repr(checkpoint.progress[name]) for name in names}
    random = {name: state for name, state in checkpoint.carried.items() if name.startswith("rng.")}
    return digest(progress, {**checkpoint.weights, **random})


def restore_snapshot(trainer: Trainer, checkpoint: Checkpoint) -> None:
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
    # The machine is that of this session.
    session = trainer.state
    state.threads = session.threads
    state.kernels = session.kernels
    state.backend = session.backend
    state.stop_reason = ""
    state.scored = session.scored | {"seen": seen} if session.scored else {}
    trainer.state = state
    trainer.forget_divergence()


def _restored_state(trainer: Trainer, checkpoint: Checkpoint) -> TrainState:
    """The checkpoint's state; restores torch's random state too."""
    progress, device = checkpoint.progress, trainer.device
    for name, kind in get_type_hints(TrainState).items():
        kind = get_origin(kind) if get_origin(kind) in (list, dict) else kind
        if name not in _TENSORS and not isinstance(progress[name], kind):
            raise ValueError(f"{name}: found {progress[name]!r:.40}")
    carried = {name: tensor.clone() for name, tensor in checkpoint.carried.items()}
    set_random_state(device, [carried.pop(name) for name in _GENERATORS if name in carried])
    carried = {name: tensor.to(device) for name, tensor in carried.items()}
    objective_sum, grad_norm = carried.pop("objective_sum"), carried.pop("grad_norm")
    recurrent = tuple(carried[f"recurrent.{index}"] for index in range(len(carried))) or None
    if progress["position"] >= trainer.streams.length:
        raise ValueError(f"position: found {progress['position']}; a stream has {trainer.streams.length}")
    if recurrent is not None:
        states = recurrent, trainer.model.initial_state(trainer.config.train.batch_size)
        found, needed = ([(tensor.dtype, tensor.shape) for tensor in each] for each in states)
        if found != needed:  # kernels would read past their end
            raise ValueError(f"recurrent: found {found}; the model has {needed}")
        recurrent = tuple(trainer.group.shard.of(state_LBH, dim=1) for state_LBH in recurrent)
    return TrainState(**progress, objective_sum=objective_sum, grad_norm=grad_norm, recurrent=recurrent)


def _restore_optimizer(trainer: Trainer, tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors into the optimizer's state. Momentum that is new starts from zero. Changes the weights."""
    trainer.optimizer.state.clear()
    if not tensors:  # before the first step
        return
    for parameter in trainer.parameters:
        parameter.grad = torch.zeros_like(parameter)
    step_and_average(trainer.optimizer, {}, torch.zeros(2, dtype=torch.float64), None)  # makes the state
    for name, tensor in _optimizer_tensors(trainer).items():
        if name.startswith("momentum_buffer/") and name not in tensors:
            tensor.zero_()
        else:
            tensor.copy_(tensors[name])


def _optimizer_tensors(trainer: Trainer) -> dict[str, Tensor]:
    return {
        f"{key}/{name}": value
        for name, parameter in trainer.model.named_parameters()
        for key, value in trainer.optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
