"""Device, precision and memory settings of the process."""

import contextlib
import ctypes

import torch

from charlm.errors import DeviceError


def resolve_device(name: str) -> torch.device:
    """The device for `auto`, `cpu` or `cuda`; DeviceError for cuda if there is no GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        built = "without CUDA" if torch.version.cuda is None else f"for CUDA {torch.version.cuda}"
        raise DeviceError(f"device: found cuda, but this PyTorch (built {built}) sees no GPU; allowed here: auto | cpu")
    return torch.device(name)


def describe_device(device: torch.device) -> str:
    """The device in words: "cpu (4 threads)" or the GPU's name."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    threads = torch.get_num_threads()
    return f"cpu ({threads} thread{'s' * (threads > 1)})"


def set_threads(threads: int) -> None:
    """Set the number of CPU threads; 0 keeps torch's default, one per core."""
    if threads:
        torch.set_num_threads(threads)


def keep_freed_memory() -> None:
    """Make glibc keep large freed blocks instead of returning them to the system; no effect with other C libraries.

    Every update frees and allocates the tensors of a window. Fresh pages must be cleared by the system, which takes up
    to a third of the time.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def supports_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16; CPUs without instructions for it emulate them."""
    return device.type != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """The autocast context for `precision`: bf16 takes products in bfloat16; weights, state and sums stay float32."""
    if precision != "bf16":
        return contextlib.nullcontext()
    if not supports_bf16(device):
        raise DeviceError(f"precision: found bf16, which {describe_device(device)} cannot; allowed here: fp32")
    return torch.autocast(device.type, dtype=torch.bfloat16)
