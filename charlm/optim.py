"""torch's optimisers, the learning rate as a function of progress, and clipping."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from charlm.config.schema import (
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    Optimizer,
    Schedule,
    StepSchedule,
)

_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
_FUSED = {"adamw", "adam", "sgd"}


def build_optimizer(model: nn.Module, config: Optimizer) -> torch.optim.Optimizer:
    """The optimiser over two groups: weights, which decay, and biases and normalisation gains, which do not."""
    named = list(model.named_parameters())
    groups = [
        {"params": [p for name, p in named if _decays(name)], "weight_decay": config.weight_decay},
        {"params": [p for name, p in named if not _decays(name)], "weight_decay": 0.0},
    ]
    fused = {"fused": True} if config.name in _FUSED else {}
    return _CLASSES[config.name](groups, **config.options(), **fused)


def _decays(name: str) -> bool:
    leaf = name.rsplit(".", 1)[-1]
    return not leaf.startswith("bias") and "_ln_" not in leaf


def learning_rate(config: Optimizer, *, step: int, epochs: int, progress: float) -> float:
    """The rate of the update after `step` updates and `epochs` whole epochs, `progress` (0 to 1) into the run."""
    schedule = config.schedule
    warmup = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    return config.lr * warmup * _decay(schedule, epochs, min(progress, 1.0))


def _decay(schedule: Schedule, epochs: int, progress: float) -> float:
    match schedule:
        case CosineSchedule():
            return _between(schedule.final_fraction, 0.5 * (1 + math.cos(math.pi * progress)))
        case LinearSchedule():
            return _between(schedule.final_fraction, 1 - progress)
        case ExponentialSchedule():
            return schedule.final_fraction**progress
        case StepSchedule():
            return schedule.factor ** max(0, epochs - schedule.after_epochs + 1)
        case _:
            return 1.0


def _between(low: float, share: float) -> float:
    return low + (1 - low) * share


def skip_step_unless(finite: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Make the next step leave the weights finite where `finite`, 0-d bool on their device, is false; no waiting.

    Fused optimisers then skip the step. For the others the gradient is blanked: momentum and decay still act.
    """
    if optimizer.defaults.get("fused"):
        optimizer.found_inf = (~finite).to(torch.float32)  # type: ignore[attr-defined]
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.masked_fill_(~finite, 0.0)


def clip_gradients(parameters: Iterable[Tensor], config: Optimizer) -> Tensor:
    """Clip in place, by value and then by norm, as the config says; the norm before clipping, a 0-d tensor.

    Nothing waits for the device: the caller decides when to look at the norm.
    """
    parameters = list(parameters)
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if config.clip_value:
        nn.utils.clip_grad_value_(parameters, config.clip_value)
    if config.clip_norm:
        clipped = nn.utils.get_total_norm(gradients) if config.clip_value else norm
        # On a CPU nothing is waited for, and to multiply by one would take as long as the norm.
        if clipped.device.type != "cpu" or clipped > config.clip_norm:
            nn.utils.clip_grads_with_norm_(parameters, config.clip_norm, clipped)
    return norm
