"""Device, precision and memory settings of the process."""

import contextlib
import ctypes
import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from charlm.errors import DeviceError
from charlm.system.formatting import counted
from charlm.system.host import count_cores, free_bytes, process_peak_bytes
from charlm.system.process_group import ONE_PROCESS, ProcessGroup

CPU = torch.device("cpu")


def resolve_device(name: str, group: ProcessGroup = ONE_PROCESS) -> torch.device:
    """The device for `auto`, `cpu`, `cuda` or `cuda:N`, with its index. Processes of a machine get a GPU each."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return CPU
    kind, _, number = name.partition(":")
    if kind not in ("auto", "cuda") or not (number or "0").isdecimal():
        raise DeviceError(f"device: found {name}; allowed: auto | cpu | cuda | cuda:1 (the second GPU) and so on")
    if not torch.cuda.is_available():
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        if torch.version.hip:
            built = f"for ROCm {torch.version.hip}"
        raise DeviceError(
            f"device: found {name}, but this PyTorch (built {built}) sees no GPU; allowed here: auto | cpu"
        )
    count, shared = torch.cuda.device_count(), group.local_size > 1
    if shared and (number or group.local_size > count):
        found = f"found {name} for {group.local_size} processes on a machine with {counted(count, 'GPU')}"
        allowed = "allowed: cpu, or at most one process per GPU (--nproc-per-node)"
        raise DeviceError(f"device: {found}; {allowed}")
    index = int(number or (group.local_rank if shared else 0))
    if index >= count:
        raise DeviceError(f"device: found {name}; allowed here: auto | cpu | cuda | cuda:0 to cuda:{count - 1}")
    return torch.device("cuda", index)


def prepare_device(device: torch.device, precision: str) -> None:
    """Set up the process for a model on `device`: the current GPU, and how it multiplies float32 matrices.

    tf32 rounds their operands to ten bits of mantissa. With bf16, cuDNN's recurrent layers take TF32, because autocast
    would cast them to float16. DeviceError if the device lacks the precision.
    """
    allows_graphs()  # for its error
    if precision not in precisions(device):
        allowed = " | ".join(precisions(device))
        fault = f"found {precision}, which {describe_device(device)} lacks"
        raise DeviceError(f"precision: {fault}; allowed here: {allowed}")
    if device.type != "cuda":
        return
    # With this cuBLAS gives the same bits in every run. It is read when the first product is computed.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.cuda.set_device(device)
    fp32_precision(("tf32" if precision == "tf32" else "ieee", "ieee" if precision == "fp32" else "tf32"))


def allows_graphs() -> bool:
    """Whether layers and samples may become CUDA graphs: unless `CHARLM_GRAPHS` is 0. DeviceError for another value."""
    found = os.environ.get("CHARLM_GRAPHS", "")
    if found not in ("", "0"):
        raise DeviceError(
            f"CHARLM_GRAPHS: found {found!r} in the environment; allowed: 0 (no CUDA graphs); set it so, or unset it"
        )
    return not found


_backends: Any = torch.backends
_PLACES = _backends.cuda.matmul, _backends.cudnn.rnn, _backends.cudnn.conv


def fp32_precision(new: tuple[str, str] | None = None) -> tuple[str, str]:
    """How GPUs multiply float32, in matrix products and in cuDNN's layers: ieee, tf32 or none. Sets `new`."""
    # torch has two names for each. Reading the older one raises where the newer one was set alone, so only the newer
    # one is read, and both are set. Setting cuDNN's older one to False leaves TF32 on where it is torch's for all.
    if new:
        _backends.cuda.matmul.allow_tf32, _backends.cudnn.allow_tf32 = (one == "tf32" for one in new)
        for place, value in zip(_PLACES, (*new, new[1]), strict=True):
            place.fp32_precision = value
    return _PLACES[0].fp32_precision, _PLACES[1].fp32_precision


@contextlib.contextmanager
def own_settings() -> Iterator[None]:
    """Enable gradients in the block; after it, restore the caller's random state, threads, precisions and malloc."""
    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    precisions = fp32_precision()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        keep_freed_memory(False)
        torch.set_rng_state(state)
        torch.set_num_threads(threads)
        if fp32_precision() != precisions:
            fp32_precision(precisions)
        if torch.cuda.is_initialized():
            torch.cuda.set_device(gpu)
        if gpus is None:
            torch.cuda.manual_seed_all(torch.initial_seed())  # as if the GPUs' first use came after the block
        else:
            torch.cuda.set_rng_state_all(gpus)


def precisions(device: torch.device) -> tuple[str, ...]:
    """The precisions that the device can multiply matrices in; CPUs without bfloat16 instructions emulate them."""
    if device.type != "cuda":
        return "fp32", "bf16"
    return ("fp32", "tf32", "bf16") if torch.cuda.get_device_capability(device) >= (8, 0) else ("fp32",)


def to_device(array: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """A copy of the array on the device; to a GPU through pinned memory, asynchronously in the current stream."""
    tensor = torch.from_numpy(array)
    # The allocator of pinned memory keeps the block until the copy has finished.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def describe_device(device: torch.device) -> str:
    """The device in words: "cpu (4 threads)", or which GPU and its name."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({counted(torch.get_num_threads(), 'thread')})"


def describe_card(device: torch.device) -> str:
    """The model of a GPU, with its compute capability."""
    if device.type != "cuda":
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f"{torch.cuda.get_device_name(device)}, {major}.{minor}"


def set_threads(threads: int) -> None:
    """Set the number of CPU threads; 0: torch's default, or fewer under a quota. A forked process keeps one."""
    if _forked:
        return
    if threads:
        torch.set_num_threads(threads)
    elif "OMP_NUM_THREADS" not in os.environ and (cores := count_cores()) < torch.get_num_threads():
        torch.set_num_threads(cores)


_forked = False


def _keep_one_thread() -> None:
    """A forked process lacks OpenMP's other threads: torch's operators and the kernels would wait for them forever."""
    global _forked
    _forked = True
    torch.set_num_threads(1)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_keep_one_thread)


def available_bytes(device: torch.device) -> int | None:
    """Free memory of the device now; None if the system does not say."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_bytes()


def peak_bytes(device: torch.device) -> int | None:
    """The most memory that this process held at a time; None if the system does not say.

    On the CPU, all that the process held, Python and libraries included; on a GPU, what torch's allocator held, scratch
    memory and freed blocks included.
    """
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else process_peak_bytes()


def free_memory() -> None:
    """Return a discarded model's memory to the system."""
    gc.collect()  # a model and its optimizer refer to each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def keep_freed_memory(keep: bool = True) -> None:
    """Make glibc keep large freed blocks: clearing fresh pages takes up to a third of the time of an update.

    Or give them back. glibc does not tell its settings, and adjusts them no more: they are those that it comes to by
    itself in a program that frees large blocks.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(-4, 0 if keep else 2**16)  # M_MMAP_MAX
        libc.mallopt(-1, 2**31 - 1 if keep else 2**26)  # M_TRIM_THRESHOLD
        if not keep:
            libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD
            libc.malloc_trim(0)


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """The autocast context for `precision`: bf16 takes products in bfloat16; weights, state and sums stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


def autocasts_to_bf16(device: torch.device = CPU) -> bool:
    """Whether autocast asks for products in bfloat16 on this device; sums are float32."""
    return autocast_state(device) == (True, torch.bfloat16)


def without_autocast(device: torch.device) -> torch.autocast:
    """A context in which autocast does not round operands and results of torch's products."""
    return torch.autocast(_autocast_name(device), enabled=False)


def random_state(device: torch.device) -> list[torch.Tensor]:
    """The state of the generators from which masks for this device are drawn."""
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


def set_random_state(device: torch.device, state: list[torch.Tensor]) -> None:
    """The inverse of `random_state`; without the state of a GPU, its generator stays as it is."""
    on_cpu, *on_gpu = state
    torch.set_rng_state(on_cpu)
    if device.type == "cuda" and on_gpu:
        torch.cuda.set_rng_state(on_gpu[0], device)


def autocast_state(device: torch.device) -> tuple[bool, torch.dtype]:
    """Whether autocast is on for this device, and its dtype."""
    name = _autocast_name(device)
    return torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)


def _autocast_name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else "cuda"
