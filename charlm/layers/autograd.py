"""What the functions of autograd that call kernels have in common."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class KernelFunction(torch.autograd.Function):
    """A function of autograd that calls kernels, which read and write numbers in memory.

    Call `refuse_symbols` before `apply`. A class method here could do it, but torch.compile fails on one.
    """

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        raise _refused("forward-mode derivatives")


def refuse_symbols() -> None:
    """RuntimeError where PyTorch traces or transforms what it calls: kernels have no numbers to compute with then."""
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        raise _refused("torch.jit.trace")
    if torch.compiler.is_exporting():
        raise _refused("torch.export")
    if torch._C._are_functorch_transforms_active():
        raise _refused("a transform of torch.func")


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates the backward pass of a `KernelFunction`: RuntimeError if its gradients are to have gradients."""

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Tensor) -> Any:
        # Gradients are enabled here only if the backward pass builds a graph of its own (create_graph=True).
        if torch.is_grad_enabled():
            raise _refused("second derivatives")
        if not all(map(torch._C._has_storage, gradients)):
            raise _refused("vectorized gradients")
        return backward(ctx, *gradients)

    return checked


def _refused(found: str) -> RuntimeError:
    return RuntimeError(
        f"charlm's kernels: found {found}; allowed: plain calls and first derivatives; use the layers' "
        "forward_reference, after eval() if they have dropout, or PyTorch's own functions"
    )
