"""Chooses the precision of matrix products for `auto`."""

import torch

from charlm.native.kernels import PRODUCT
from charlm.native.loading import KernelError, call
from charlm.system.device import precisions


def bf16_instructions() -> str:
    """The instructions by which kernels multiply bfloat16 faster than float32 here, or ""; KernelError without any."""
    return ("", "AVX512_BF16", "AMX")[call(PRODUCT, "product_fast_bf16").bf16]


def choose_precision(precision: str, device: torch.device) -> tuple[str, str]:
    """The precision, fp32 or bf16 for `auto`, and a reason: why `auto` takes it, or why another is faster, or ""."""
    if device.type != "cpu":
        if precision != "auto":
            return precision, ""
        return ("bf16", "faster on this GPU") if "bf16" in precisions(device) else ("fp32", "this GPU lacks bf16")
    if precision not in ("auto", "bf16"):
        return precision, ""
    try:
        fast, lacks = bf16_instructions(), "no instructions for it"
    except KernelError:
        fast, lacks = "", "no kernels"
    if precision == "auto":
        return ("bf16", f"faster on this CPU ({fast})") if fast else ("fp32", f"bf16 would be slower here ({lacks})")
    return precision, "" if fast else f"fp32 would be faster here ({lacks})"
