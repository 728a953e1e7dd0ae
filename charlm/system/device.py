"""Where and in which precision a run computes."""

import contextlib
import ctypes

import torch

from charlm.errors import DeviceError


def resolve_device(name: str) -> torch.device:
    """The device of `auto`, `cpu` or `cuda`; DeviceError where CUDA is asked for by name and not there."""
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
    """Use so many CPU threads; 0 leaves torch's own choice, one per core."""
    if threads:
        torch.set_num_threads(threads)


def keep_freed_memory() -> None:
    """Have the C library keep large freed blocks for the next request, instead of returning them to the system.

    A window's tensors are freed and asked for again at every update: as fresh pages, which the system has to
    clear, they take up to a third of the time. glibc only; elsewhere nothing happens.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """Products in bf16 under `precision: bf16`; weights, state and sums stay fp32."""
    if precision != "bf16":
        return contextlib.nullcontext()
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise DeviceError(f"precision: found bf16, which {describe_device(device)} cannot; allowed here: auto | fp32")
    return torch.autocast(device.type, dtype=torch.bfloat16)
