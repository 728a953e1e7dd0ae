"""Converts a trainer's complete training state to a checkpoint and back."""

from collections.abc import Mapping

import torch
from torch import Tensor

from charlm.checkpoint import Checkpoint, digest
from charlm.errors import CheckpointError
from charlm.model import load_weights
from charlm.native.build import used_kernels
from charlm.training.state import TrainState
from charlm.training.step import Trainer


def take_snapshot(trainer: Trainer) -> Checkpoint:
    """A checkpoint from which `restore_snapshot` continues as if the run had never stopped.

    Its tensors are on the CPU; those of a trainer there share its memory. All processes call this together.
    """

    def on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.detach().cpu() for name, tensor in tensors.items()}

    carried = {**trainer.state.tensors(trainer.group), "rng.cpu": torch.get_rng_state()}
    if trainer.device.type == "cuda":
        carried["rng.cuda"] = torch.cuda.get_rng_state(trainer.device)
    return Checkpoint(
        config=trainer.config,
        vocabulary=trainer.vocabulary,
        weights=on_cpu(dict(trainer.model.named_parameters())),
        averaged=on_cpu({} if trainer.averaged is None else dict(trainer.averaged.named_parameters())),
        optimizer=on_cpu(_optimizer_tensors(trainer)),
        carried=on_cpu(carried),
        progress=trainer.state.progress(),
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
        carried = dict(checkpoint.carried)
        torch.set_rng_state(carried.pop("rng.cpu").clone())
        cuda_state = carried.pop("rng.cuda", None)
        if trainer.device.type == "cuda" and cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state, trainer.device)
        state = TrainState.restored(checkpoint.progress, carried, trainer.device)
        if state.position >= trainer.streams.length:
            raise ValueError(f"position: found {state.position}; a stream has {trainer.streams.length}")
        if state.recurrent is not None:
            states = state.recurrent, trainer.model.zero_state(trainer.config.train.batch_size)
            found, needed = ([(tensor.dtype, tensor.shape) for tensor in each] for each in states)
            if found != needed:  # kernels would read past their end
                raise ValueError(f"recurrent: found {found}; the model has {needed}")
        load_weights(trainer.model, checkpoint.weights)
        if trainer.averaged is not None:
            load_weights(trainer.averaged, checkpoint.averaged or checkpoint.weights)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint: its training state does not fit ({error}); use another one") from None
    state.threads, state.kernels, state.stop_reason = torch.get_num_threads(), used_kernels(), ""
    state.backend = trainer.state.backend
    if state.recurrent is not None:
        state.recurrent = tuple(trainer.group.shard.of(state_LBH, dim=1) for state_LBH in state.recurrent)
    trainer.state = state
    trainer.forget_divergence()


def _restore_optimizer(trainer: Trainer, tensors: Mapping[str, Tensor]) -> None:
    """Copy the tensors into the optimizer's state; KeyError or RuntimeError unless all are there in its shapes.

    Momentum that the resumed run switches on starts from zero. The weights are restored after this.
    """
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


def _optimizer_tensors(trainer: Trainer) -> dict[str, Tensor]:
    return {
        f"{key}/{name}": value
        for name, parameter in trainer.model.named_parameters()
        for key, value in trainer.optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
