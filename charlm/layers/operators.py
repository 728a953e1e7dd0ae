"""Products and the loss, with gradients: by the kernels on the CPU, elsewhere by PyTorch."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from charlm.gpu.product import torch_product
from charlm.native import operators
from charlm.native.kernels import LOSS, PRODUCT
from charlm.native.loading import works
from charlm.native.operators import check_tensor
from charlm.native.recording import repeated_whole
from charlm.system.device import autocasts_to_bf16, without_autocast


def refuse_symbols() -> None:
    """RuntimeError where PyTorch traces or transforms what it calls: kernels have no numbers to compute with then."""
    if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
        raise _refused("torch.jit.trace")
    if torch.compiler.is_exporting() or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY):
        raise _refused("torch.export or make_fx")
    if torch._C._are_functorch_transforms_active():
        raise _refused("a transform of torch.func")


class KernelFunction(torch.autograd.Function):
    """A kernel's function. RuntimeError for forward-mode derivatives."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise _refused("forward-mode derivatives")


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates the backward pass of a kernel's function: RuntimeError if its gradients are to have gradients."""

    @functools.wraps(backward)
    def checked(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():  # create_graph=True
            raise _refused("second derivatives")
        if not all(torch._C._has_storage(gradient) for gradient in gradients if gradient is not None):
            raise _refused("vectorized gradients")
        return backward(ctx, *gradients)

    return checked


def _refused(found: str) -> RuntimeError:
    return RuntimeError(
        f"charlm's kernels: found {found}; allowed: plain calls and first derivatives; use the layers' "
        "forward_reference, after eval() if they have dropout, or PyTorch's own functions"
    )


def linear(x: Tensor, w_NK: Tensor, bias_N: Tensor | None = None) -> Tensor:
    """x wᵀ + bias over the last dimension of x, as `F.linear`; on the CPU by a faster kernel, if it compiles.

    Under autocast to bfloat16 the operands are rounded; sums and result are float32.
    """
    if x.device.type == "cpu":
        operands = [x, w_NK] if bias_N is None else [x, w_NK, bias_N]
        if not x.shape[-1] or not all(map(_is_for_kernels, operands)) or not works(PRODUCT):
            return F.linear(x, w_NK, bias_N)
    refuse_symbols()
    y_MN: Any = _Linear.apply(x.reshape(-1, x.shape[-1]), w_NK, bias_N, autocasts_to_bf16(x.device))
    return y_MN.view(*x.shape[:-1], len(w_NK))


def matmul(a_MK: Tensor, b_KN: Tensor, bias_N: Tensor | None = None, *, bf16: bool = False) -> Tensor:
    """a b + bias, [M, N], without gradients. With `bf16` the operands are rounded, not the result."""
    if a_MK.device.type == "cpu":
        return operators.matmul(a_MK, b_KN, bias_N, bf16=bf16)
    with without_autocast(a_MK.device):
        c_MN = torch_product(a_MK, b_KN, bf16=bf16)
        return c_MN if bias_N is None else c_MN.add_(bias_N)


def column_sums(a_MK: Tensor) -> Tensor:
    """The sums over the rows of a matrix of float32, without gradients."""
    return operators.column_sums(a_MK) if a_MK.device.type == "cpu" else a_MK.sum(0)


def _is_for_kernels(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.dtype == torch.float32 and tensor.layout == torch.strided and not tensor.is_neg()


class _Linear(KernelFunction):
    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, w_NK: Tensor, bias_N: Tensor | None, bf16: bool) -> Tensor:
        ctx.save_for_backward(x_MK, w_NK)
        ctx.bf16 = bf16
        return matmul(x_MK, w_NK.t(), bias_N, bf16=bf16)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, dy_MN: Tensor) -> tuple[Tensor | None, ...]:
        x_MK, w_NK = ctx.saved_tensors
        dx, dw, dbias, _ = ctx.needs_input_grad
        return (
            matmul(dy_MN, w_NK, bf16=ctx.bf16) if dx else None,
            matmul(dy_MN.t(), x_MK, bf16=ctx.bf16) if dw else None,
            column_sums(dy_MN) if dbias else None,
            None,
        )


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Nats [...] of targets [...] under logits [..., V], in float32. On the CPU by a one-pass kernel, if it compiles.

    ValueError for targets of another shape, type or device and, on the CPU, for targets outside 0 … V − 1.
    """
    check_tensor("targets", targets, logits.shape[:-1], torch.int64, logits.device)
    logits_NV, targets_N = logits.float().reshape(-1, logits.shape[-1]), targets.reshape(-1)
    if logits.device.type == "cpu":
        check_ids("targets", targets, logits.shape[-1])
    if logits.device.type == "cpu" and works(LOSS):
        refuse_symbols()
        nats_N: Any = _CrossEntropy.apply(logits_NV.contiguous(), targets_N.contiguous(), torch.is_grad_enabled())
    else:
        nats_N = F.cross_entropy(logits_NV, targets_N, reduction="none")
    return nats_N.view(targets.shape)


class _CrossEntropy(KernelFunction):
    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor, with_backward: bool) -> Tensor:
        nats_N, d_logits_NV = operators.cross_entropy(logits_NV, targets_N, with_backward=with_backward)
        ctx.save_for_backward(d_logits_NV)
        return nats_N

    @staticmethod
    @first_derivative
    def backward(ctx: Any, d_nats_N: Tensor) -> tuple[Tensor, None, None]:
        (d_logits_NV,) = ctx.saved_tensors
        return d_logits_NV * d_nats_N.unsqueeze(-1), None, None


@repeated_whole
def check_ids(name: str, ids: Tensor, V: int) -> None:
    """ValueError unless all ids are from 0 to V − 1."""
    if ids.numel():
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= V:
            raise ValueError(f"{name}: found {low} to {high}; allowed: 0 to {V - 1}")
