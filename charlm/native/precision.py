"""The precision of matrix products: what `auto` takes."""

import torch

from charlm.native.build import KernelError
from charlm.native.linear import PRODUCT
from charlm.system.device import precisions


def multiplies_bf16_in_tiles() -> bool:
    """Whether the kernels multiply bfloat16 with AMX here; KernelError if they do not compile."""
    struct = PRODUCT.structs[0].fill()
    PRODUCT.call("product_has_tiles", struct)
    return bool(struct.bf16)


def choose_precision(precision: str, device: torch.device) -> tuple[str, str]:
    """fp32 or bf16 for `auto`, and why, in words; other values as they are, with a reason to choose another, or ""."""
    if device.type != "cpu":
        if precision != "auto":
            return precision, ""
        return ("bf16", "faster on this GPU") if "bf16" in precisions(device) else ("fp32", "this GPU lacks bf16")
    if precision not in ("auto", "bf16"):
        return precision, ""
    try:
        tiles, lacks = multiplies_bf16_in_tiles(), "no AMX"
    except KernelError:
        tiles, lacks = False, "no kernels"
    if precision == "auto":
        return ("bf16", "faster on this CPU (AMX)") if tiles else ("fp32", f"bf16 would be slower here ({lacks})")
    return precision, "" if tiles else f"fp32 would be faster here ({lacks})"
