"""What follows the backward pass of an update: the norm of all gradients, Adam, the running average of the weights."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from charlm.native.kernels import UPDATE
from charlm.native.loading import call, works
from charlm.native.operators import check_tensor


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The L2 norm of all gradients together, 0-d. In float32 on the CPU it is the same with any number of threads."""
    if not gradients or not _takes(gradients):
        return nn.utils.get_total_norm(gradients)
    norm = torch.empty(())
    call(UPDATE, "gradient_norm", tensors=len(gradients), sizes=_sizes(gradients), gradients=gradients, norm=norm)
    return norm


def adam_step(optimizer: torch.optim.Adam, averages: Mapping[Tensor, Tensor], rates: Tensor) -> bool:
    """Step of Adam or AdamW; then average ← decay · average + (1 − decay) · weight. One pass; the state is torch's.

    averages: the running average of each weight, or empty. rates: [2] in float64, the learning rate and `decay`. As in
    torch's fused step, gradients are divided by `optimizer.grad_scale`, and `optimizer.found_inf` skips the step; then
    the averages stay, too.

    Returns False, and does nothing, if the kernel does not compile or a tensor is not float32 on the CPU. ValueError
    for a gradient, average or state that does not fit its weight.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    if not _takes([*weights, *gradients, *averages.values()]):
        return False
    for weight in weights:
        state = optimizer.state.get(weight, {})
        for name, tensor in {"gradient": weight.grad, "average": averages.get(weight), **state}.items():
            if tensor is not None:
                shape = () if name == "step" else weight.shape
                check_tensor(f"{name} of a weight", tensor, shape, weight.dtype, weight.device)
    if getattr(optimizer, "found_inf", None):
        return True
    for group in optimizer.param_groups:
        weights = group["params"]
        states = [{} if weight.grad is None else _state(optimizer, weight) for weight in weights]
        call(
            UPDATE,
            "adam_step",
            tensors=len(weights),
            sizes=_sizes(weights),
            gradients=[weight.grad for weight in weights],
            weights=weights,
            averages=[averages.get(weight) for weight in weights],
            means=[state.get("exp_avg") for state in states],
            squares=[state.get("exp_avg_sq") for state in states],
            steps=[state.get("step") for state in states],
            rates=rates,
            gradient_scale=getattr(optimizer, "grad_scale", None),
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            decay=group["weight_decay"],
            decoupled=group["decoupled_weight_decay"],
        )
    return True


def _takes(tensors: Sequence[Tensor]) -> bool:
    """Whether the kernel can read and write them."""
    fits = (t.is_cpu and t.dtype == torch.float32 and t.is_contiguous() for t in tensors)
    return all(fits) and works(UPDATE)


def _state(optimizer: torch.optim.Adam, weight: Tensor) -> dict[str, Tensor]:
    """The state of a weight; before its first step zeros, as torch makes them."""
    state = optimizer.state[weight]
    if not state:
        state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
    return state


def _sizes(tensors: Sequence[Tensor]) -> Tensor:
    return torch.tensor([tensor.numel() for tensor in tensors], dtype=torch.int64)
