"""torch's optimizers, Muon for matrices that multiply states, learning-rate schedules, and gradient clipping."""

import inspect
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from charlm.config.optimizers import CosineSchedule, LinearSchedule, MuonConfig, Optimizer, StepSchedule
from charlm.layers import RecurrentLayers
from charlm.native.update import adam_step, gradient_norm


def _eager(optimizer: type[torch.optim.Optimizer]) -> Any:
    """The class without its hooks for torch.compile: they import torch._dynamo, which takes more than a second."""
    plain = {
        "add_param_group": inspect.unwrap(torch.optim.Optimizer.add_param_group),
        "step": torch.no_grad()(inspect.unwrap(optimizer.step)),
    }
    return type(optimizer.__name__, (optimizer,), plain)


_AdamW = _eager(torch.optim.AdamW)
_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": _AdamW,
    "adam": _eager(torch.optim.Adam),
    "sgd": _eager(torch.optim.SGD),
    "rmsprop": _eager(torch.optim.RMSprop),
    "adagrad": _eager(torch.optim.Adagrad),
}
_FUSED = {"adamw", "adam", "sgd"}
LEAST_COPIES = {"adamw": 2, "adam": 2, "muon": 1, "sgd": 0, "rmsprop": 1, "adagrad": 1}
"""Tensors of a parameter's shape in the optimizer's state, at least; with momentum one more."""


def build_optimizer(model: nn.Module, config: Optimizer) -> torch.optim.Optimizer:
    """The optimizer with groups of matrices, which decay, of vectors, which do not, and of Muon's state matrices."""
    stacks = [module for module in model.modules() if isinstance(module, RecurrentLayers)]
    vectors = {vector for stack in stacks for vector in stack.vectors()}
    shapes: dict[Tensor, tuple[int, ...]] = {}
    if isinstance(config, MuonConfig):
        for stack in stacks:
            shapes |= stack.state_matrices()
    decayed: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}
    by_muon: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if parameter in shapes:
            by_muon[name] = parameter
        elif parameter in vectors or parameter.dim() < 2:
            others[name] = parameter
        else:
            decayed[name] = parameter
    groups = [_group(decayed, config.weight_decay), _group(others, 0.0)]
    if isinstance(config, MuonConfig):
        own = {"shapes": [shapes[matrix] for matrix in by_muon.values()], "momentum": config.momentum}
        groups.append(_group(by_muon, config.weight_decay) | own)
        return Muon(groups, lr=config.lr, betas=config.betas, eps=config.eps)
    fused = {"fused": True} if config.name in _FUSED else {}
    return _CLASSES[config.name](groups, **config.options(), **fused)


def _group(parameters: Mapping[str, Tensor], decay: float) -> dict[str, Any]:
    return {"params": [*parameters.values()], "names": [*parameters], "weight_decay": decay}


def describe_treatment(optimizer: torch.optim.Optimizer, name: str) -> str:
    """Which parameters decay, and which Muon takes, in a line. name: the config's name of the optimizer."""
    treated: dict[str, dict[str, str]] = {}
    for group in optimizer.param_groups:
        by = "muon" if "shapes" in group else name.replace("muon", "adamw")
        decay = f"decay {group['weight_decay']:g}" if group["weight_decay"] else "no decay"
        for parameter in group["names"]:
            own = re.sub(r"^(members\.\d+\.)?(layers\.)?", "", parameter)
            base = re.sub(r"_l\d+$", "", own)
            treated.setdefault(f"{by}, {decay}", {}).setdefault(base, own if own.endswith("_l0") else f"{own}…")
    if len(treated) == 1:
        return f"{next(iter(treated))}: all parameters"
    # The layers are named where those above the first are treated in another way.
    times = Counter(itertools.chain(*treated.values()))
    lists = []
    for how, names in treated.items():
        listed = [own if times[base] > 1 else base for base, own in names.items()]
        lists.append(f"{how}: {', '.join(listed)}")
    return "; ".join(lists)


class Muon(_AdamW):
    """AdamW, except that groups with `shapes` step along orthogonal matrices (Jordan et al. 2024).

    `shapes` are the shapes of one gate's matrix in each parameter. The Nesterov momentum of a gate's gradient is made
    nearly orthogonal, and scaled so that AdamW's learning rate and decay fit (Liu et al. 2025, arXiv:2502.16982, (4)).
    torch.optim.Muon treats [G·H, H] as one matrix, refuses [D, G·H, H], and multiplies in bfloat16.

    `step` is AdamW's: `step_and_average` calls `step_matrices` before it.
    """

    @torch.no_grad()
    def step_matrices(self, lr: Tensor) -> None:
        """Step along orthogonal matrices at the rate lr, 0-d; drop their gradients, so that AdamW skips them."""
        for group in self.param_groups:
            for parameter, shape in zip(group["params"], group.get("shapes", ()), strict=False):
                if parameter.grad is not None:
                    self._step_parameter(parameter, shape, group, lr)
                    parameter.grad = None

    def _step_parameter(self, parameter: Tensor, shape: tuple[int, ...], group: dict[str, Any], lr: Tensor) -> None:
        state, gradient = self.state[parameter], parameter.grad
        assert gradient is not None
        if not state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
            state["step"] = torch.zeros(())  # AdamW expects it when it loads states
        average = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        blocks = gradient.lerp(average, group["momentum"]).view(-1, *shape)
        parameter.mul_(1 - lr * group["weight_decay"])
        parameter.sub_(orthogonal(blocks).view_as(parameter) * (0.2 * math.sqrt(max(shape)) * lr))


def orthogonal(blocks: Tensor) -> Tensor:
    """U Vᵀ for each matrix U S Vᵀ of [N, rows, columns], by five Newton-Schulz steps with Jordan's coefficients.

    Roughly: singular values are between 0.7 and 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    blocks = blocks / (blocks.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = blocks @ blocks.mT
        blocks = a * blocks + (b * gram + c * gram @ gram) @ blocks
    return blocks


def step_and_average(
    optimizer: torch.optim.Optimizer, averages: Mapping[Tensor, Tensor], rates: Tensor, gradient_scale: Tensor | None
) -> None:
    """Make a step; then average ← decay · average + (1 − decay) · weight, for each weight that has one.

    rates: [2] in float64 on the CPU, the learning rate and `decay`. gradient_scale: see `clip_gradients`.
    """
    optimizer.grad_scale = gradient_scale  # type: ignore[attr-defined]
    if isinstance(optimizer, Muon):
        optimizer.step_matrices(rates[0])
    if isinstance(optimizer, torch.optim.Adam) and adam_step(optimizer, averages, rates):
        return
    lr, decay = float(rates[0]), float(rates[1])  # so this is not recorded
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    share = (1 - decay) * (1 - getattr(optimizer, "found_inf", 0.0))  # a skipped step changes no average either
    with torch.no_grad():
        for weight, average in averages.items():
            average.lerp_(weight, share)


def learning_rate(config: Optimizer, step: int, epochs: int, share_done: float) -> float:
    """Learning rate of the next update, after `step` updates, `epochs` whole epochs and a share of the run."""
    schedule, decay = config.schedule, 1.0
    warmup = min(1.0, (step + 1) / schedule.warmup_steps) if schedule.warmup_steps else 1.0
    match schedule:
        case CosineSchedule():
            share = 0.5 * (1 + math.cos(math.pi * share_done))
            decay = schedule.final_fraction + (1 - schedule.final_fraction) * share
        case LinearSchedule():
            decay = schedule.final_fraction + (1 - schedule.final_fraction) * (1 - share_done)
        case StepSchedule():
            decay = schedule.factor ** max(0, epochs - schedule.after_epochs + 1)
    return config.lr * warmup * decay


def can_skip_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the device itself can skip a step, see `skip_step_unless`: if the optimizer is fused.

    Not with momentum in SGD, whose buffer would stay unset if the first step were skipped.
    """
    return bool(optimizer.defaults.get("fused")) and not optimizer.defaults.get("momentum")


def skip_step_unless(finite: Tensor, optimizer: torch.optim.Optimizer) -> None:
    """Unless `finite` (0-d bool on the device), the next `step_and_average` changes nothing."""
    optimizer.found_inf = (~finite).to(torch.float32)  # type: ignore[attr-defined]


def clip_gradients(
    optimizer: torch.optim.Optimizer, config: Optimizer, members: Sequence[Sequence[Tensor]] = ()
) -> tuple[Tensor, Tensor | None]:
    """Clip gradients by value and then by norm; return the norm before clipping, a 0-d tensor, and a scale.

    Fused optimizers clip by norm in their next step, which divides gradients by the scale: that saves a pass over the
    gradients. members: the parameters of each member; each member is clipped alone, and the result is the root mean
    square of their norms.
    """
    if len(members) > 1:
        norms = [_clip(parameters, config)[0] for parameters in members]
        return torch.stack(norms).square().mean().sqrt(), None
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return _clip(parameters, config, in_step=bool(optimizer.defaults.get("fused")))


def _clip(parameters: Sequence[Tensor], config: Optimizer, *, in_step: bool = False) -> tuple[Tensor, Tensor | None]:
    """`clip_gradients` of some parameters. in_step: by norm in the next step."""
    parameters = [p for p in parameters if p.grad is not None]
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = gradient_norm(gradients)
    if config.clip_value:
        nn.utils.clip_grad_value_(parameters, config.clip_value)
    if not config.clip_norm:
        return norm, None
    clipped = gradient_norm(gradients) if config.clip_value else norm
    if in_step:
        # The constant is that of clip_grad_norm_.
        return norm, ((clipped + 1e-6) / config.clip_norm).clamp(min=1)
    nn.utils.clip_grads_with_norm_(parameters, config.clip_norm, clipped)
    return norm, None
