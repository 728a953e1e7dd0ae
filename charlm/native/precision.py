"""The precision of matrix products: what `auto` takes."""

import ctypes

import torch

from charlm.native.build import load
from charlm.native.linear import PRODUCT


def multiplies_bf16_in_tiles() -> bool:
    """Whether the kernels multiply bfloat16 with AMX here, several times as fast as float32."""
    if not PRODUCT.works():
        return False
    (library,) = load(PRODUCT)
    function = library.product_has_tiles
    function.restype = ctypes.c_ssize_t
    return bool(function())


def choose_precision(precision: str, device: torch.device) -> tuple[str, str]:
    """fp32 or bf16 for `auto`, and why, in words; other values as they are, with a reason to choose another, or ""."""
    tiles = device.type == "cpu" and multiplies_bf16_in_tiles()
    if precision == "auto":
        if device.type != "cpu":
            return "fp32", ""
        return ("bf16", "faster on this CPU (AMX)") if tiles else ("fp32", "bf16 would be slower on this CPU (no AMX)")
    if precision == "bf16" and device.type == "cpu" and not tiles:
        return precision, "fp32 would be faster on this CPU (no AMX)"
    return precision, ""
