"""torch's optimisers, Muon for recurrent matrices, the learning rate as a function of progress, and clipping."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from charlm.config.optimizers import (
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    MuonConfig,
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
    """The optimiser over two groups: weights, which decay, and biases and normalisation gains, which do not.

    Muon has the matrices that it is for in a third.
    """
    named = list(model.named_parameters())
    matrices = {name: p for name, p in named if isinstance(config, MuonConfig) and _maps_states(name)}
    weights = [p for name, p in named if _decays(name) and name not in matrices]
    groups: list[dict[str, Any]] = [
        {"params": weights, "weight_decay": config.weight_decay},
        {"params": [p for name, p in named if not _decays(name)], "weight_decay": 0.0},
    ]
    if isinstance(config, MuonConfig):
        groups.append(
            {"params": [*matrices.values()], "weight_decay": config.weight_decay, "momentum": config.momentum}
        )
        return Muon(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    fused = {"fused": True} if config.name in _FUSED else {}
    return _CLASSES[config.name](groups, **config.options(), **fused)


def _decays(name: str) -> bool:
    leaf = name.rsplit(".", 1)[-1]
    return not leaf.startswith("bias") and "_ln_" not in leaf


def _maps_states(name: str) -> bool:
    """Whether a parameter is made of square matrices: of the recurrence, or of a layer's input above the first."""
    leaf = name.rsplit(".", 1)[-1]
    return leaf.startswith("weight_hh") or (leaf.startswith("weight_ih") and not leaf.endswith("_l0"))


class Muon(torch.optim.AdamW):
    """AdamW, but groups with a `momentum` are stepped along the nearest orthogonal matrices (Jordan et al. 2024).

    Of every [H, H] block of such a parameter, gate by gate, the gradient's Nesterov momentum is made nearly
    orthogonal, and scaled so that rate and decay are those of AdamW (Liu et al. 2025, arXiv:2502.16982, (4)).
    torch.optim.Muon takes whole [G·H, H] as one matrix, no [D, G·H, H], and its products in bfloat16, which few CPUs
    compute fast.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step once."""
        for group in self.param_groups:
            if "momentum" not in group:
                continue
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_matrices(parameter, group)
                    parameter.grad = None  # AdamW then passes it over
        super().step(closure)

    def _step_matrices(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
            state["step"] = torch.zeros(())  # AdamW, when it loads states, looks for one in each
        average = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        size = parameter.shape[-1]
        blocks = gradient.lerp(average, group["momentum"]).view(-1, size, size)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(orthogonal(blocks).view_as(parameter), alpha=-0.2 * math.sqrt(size) * group["lr"])


def orthogonal(blocks: Tensor) -> Tensor:
    """U Vᵀ of each of the square matrices U S Vᵀ [N, H, H], roughly: singular values between 0.7 and 1.2.

    Five steps of Newton and Schulz with the coefficients of Jordan et al. (2024), which are the quickest to lift
    small singular values.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    found = blocks / (blocks.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = found @ found.mT
        found = a * found + (b * gram + c * gram @ gram) @ found
    return found


def kept_tensors(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> dict[str, bool]:
    """What a step keeps for each parameter of a group: the tensors' names, and whether each has the parameter's shape.

    The others are single numbers. Found by a step of the same kind on a parameter of one number.
    """
    parameter = nn.Parameter(torch.zeros(1, 1))
    parameter.grad = torch.zeros(1, 1)
    trial = type(optimizer)([{**group, "params": [parameter]}])  # type: ignore[call-arg]
    trial.step()
    return {name: value.dim() == 2 for name, value in trial.state[parameter].items() if isinstance(value, Tensor)}


def kept_copies(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> int:
    """How many tensors of a parameter's shape a step keeps for each parameter of a group."""
    return sum(kept_tensors(optimizer, group).values())


def least_copies(config: Optimizer) -> int:
    """How many tensors of a parameter's shape are kept for each parameter, at least."""
    optimizer = build_optimizer(nn.LayerNorm(1), config)  # its weights are not drawn: a run's seed is left alone
    return min(kept_copies(optimizer, group) for group in optimizer.param_groups)


def learning_rate(config: Optimizer, *, step: int, epochs: int, progress: float) -> float:
    """The rate of the update after `step` updates and `epochs` whole epochs, `progress` (0 to 1) into the run."""
    schedule = config.schedule
    warmup = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    return config.lr * warmup * _decay(schedule, epochs, progress)


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
