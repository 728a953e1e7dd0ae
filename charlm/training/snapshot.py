"""Converts a trainer's complete training state to a checkpoint and back."""

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor

from charlm.checkpoint import Checkpoint, digest
from charlm.errors import CheckpointError
from charlm.model import load_weights, map_state
from charlm.system.process_group import ONE_PROCESS
from charlm.training.optimizer import state_tensors
from charlm.training.state import TrainState
from charlm.training.step import Trainer


def take_snapshot(trainer: Trainer, *, copied: bool = False) -> Checkpoint:
    """A checkpoint from which `restore_snapshot` continues as if the run had never stopped.

    Its tensors are on the CPU. Those of a trainer on the CPU share its memory unless `copied`. All processes call this
    together and get the same checkpoint, that of a single process: it holds the hidden state of all streams.
    """

    def taken(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.detach().to("cpu", copy=copied) for name, tensor in tensors.items()}

    carried = {**trainer.state.tensors(trainer.group), "rng.cpu": torch.get_rng_state()}
    if trainer.device.type == "cuda":
        carried["rng.cuda"] = torch.cuda.get_rng_state(trainer.device)
    named = dict(trainer.model.named_parameters())
    optimizer = {
        f"{key}/{name}": value
        for name, parameter in named.items()
        for key, value in trainer.optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
    return Checkpoint(
        config=trainer.config,
        vocabulary=trainer.vocabulary,
        labels=trainer.labels,
        weights=taken(named),
        averaged=taken({} if trainer.averaged is None else dict(trainer.averaged.named_parameters())),
        optimizer=taken(optimizer),
        carried=taken(carried),
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
    load_weights(trainer.model, checkpoint.weights)
    if trainer.averaged is not None:
        load_weights(trainer.averaged, checkpoint.averaged or checkpoint.weights)
    try:
        _restore_optimizer(trainer, checkpoint.optimizer)
        carried = dict(checkpoint.carried)
        torch.set_rng_state(carried.pop("rng.cpu").clone())
        cuda_state = carried.pop("rng.cuda", None)
        if trainer.device.type == "cuda" and cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state, trainer.device)
        # Checkpoints written before `vary_bptt` existed lack this number.
        steps = {"interval_bptt": checkpoint.progress["interval_steps"] * trainer.config.train.bptt}
        state = TrainState.restored(steps | dict(checkpoint.progress), carried, trainer.device)
        _check_state(trainer, state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"checkpoint: its training state does not fit ({error}); use another one") from None
    state.threads = torch.get_num_threads()
    if state.recurrent is not None:
        state.recurrent = map_state(lambda state_LBH: trainer.group.shard.of(state_LBH, dim=1), state.recurrent)
    trainer.state = state
    trainer.forget_divergence()


def _check_state(trainer: Trainer, state: TrainState) -> None:
    """ValueError for a state that does not fit the text or the model."""
    if state.position >= trainer.streams.length:
        raise ValueError(f"position: found {state.position}; a stream has {trainer.streams.length}")
    trainer.model.layers.split_state(state.recurrent, trainer.config.train.batch_size)
    for name, tensor in state.tensors(ONE_PROCESS).items():
        wanted = getattr(trainer.state, name, None)
        if wanted is None:  # part of the hidden state: its shape was checked above, its dtype is that of the weights
            wanted = tensor.to(trainer.parameters[0].dtype)
        if (tensor.dtype, tensor.shape) != (wanted.dtype, wanted.shape):
            raise ValueError(f"{name}: found {tensor.dtype} {list(tensor.shape)}")


def _restore_optimizer(trainer: Trainer, tensors: Mapping[str, Tensor]) -> None:
    optimizer = trainer.optimizer
    names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    ordered = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key_and_name, tensor in tensors.items():
        key, _, name = key_and_name.partition("/")
        state.setdefault(ordered.index(name), {})[key] = tensor.clone()
    _check_optimizer(optimizer, state)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _check_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[int, dict[str, Tensor]]) -> None:
    """ValueError unless each parameter has its whole optimizer state or none, because fused optimizers do not check.

    If the resumed run switches momentum on, its buffers start from zero.
    """
    number = itertools.count()
    for group in optimizer.param_groups:
        expected = state_tensors(optimizer, group)
        for parameter in group["params"]:
            tensors = state.get(next(number))
            if not tensors:
                continue
            if "momentum_buffer" in expected:
                tensors.setdefault("momentum_buffer", torch.zeros_like(parameter))
            for key, shaped in expected.items():
                shape = parameter.shape if shaped else torch.Size()
                if key not in tensors or tensors[key].shape != shape or not tensors[key].is_floating_point():
                    raise ValueError(f"optimizer {key}: missing, or not {list(shape)} numbers")
