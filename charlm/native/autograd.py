"""What functions of autograd that call kernels have in common."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_CPU = torch.device("cpu")


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a backward pass that calls a kernel: RuntimeError if autograd would differentiate it again."""

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Tensor) -> Any:
        # Gradients are enabled here only if the backward pass builds a graph of its own (create_graph=True).
        if torch.is_grad_enabled():
            raise RuntimeError("charlm's own backward pass has no second derivative; use forward_reference")
        return backward(ctx, *gradients)

    return checked


def autocasts_to_bf16(device: torch.device = _CPU) -> bool:
    """Whether autocast asks for products in bfloat16 on this device; sums are float32."""
    name = _autocast_name(device)
    return torch.is_autocast_enabled(name) and torch.get_autocast_dtype(name) == torch.bfloat16


def without_autocast(device: torch.device) -> torch.autocast:
    """A context in which autocast does not round operands and results of torch's products."""
    return torch.autocast(_autocast_name(device), enabled=False)


def _autocast_name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else "cuda"
