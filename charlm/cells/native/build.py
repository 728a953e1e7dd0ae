"""C++ kernels: compiled for this machine at first use, and kept in the cache."""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Torch brings the OpenMP runtime whose threads the kernels share.
import torch

from charlm.cache import cache_dir
from charlm.errors import DataError

logger = logging.getLogger(__name__)

_FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fPIC", "-shared", "-fvisibility=hidden"]
_TIMEOUT_S = 300


class KernelError(Exception):
    """Why this machine cannot run a kernel, in a few words."""


def load(source: Path) -> ctypes.CDLL:
    """The library made of a C++ file and the headers of this folder, compiled at first use.

    KernelError where there is no compiler, it fails, or torch has no OpenMP; asked again, the same answer at once.
    """
    outcome = _load(source)
    if isinstance(outcome, KernelError):
        raise outcome
    return outcome


@functools.cache
def _load(source: Path) -> ctypes.CDLL | KernelError:
    name = source.parent.name if source.stem == "cpu" else source.stem
    try:
        if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
            raise KernelError(f"PyTorch {torch.__version__} has no OpenMP runtime that kernels can share")
        command = [*_find_compiler(), *_FLAGS, *_machine_flags()]
        path = cache_dir() / "kernels" / f"{name}-{_digest(source, command)}.so"
        if not _is_whole(path):
            _compile(name, source, command, path)
        return ctypes.CDLL(str(path))
    except KernelError as error:
        return error
    except (OSError, TypeError, ValueError, DataError, subprocess.SubprocessError) as error:
        return KernelError(f"the kernel could not be made: {error}")


def _find_compiler() -> list[str]:
    """The command of $CXX, else of the first of the usual compilers that there is."""
    if named := shlex.split(os.environ.get("CXX", "")):
        return named
    found = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    if found is None:
        raise KernelError("no C++ compiler; install g++ or clang++ for speed")
    return [found]


def _machine_flags() -> list[str]:
    """Use all that this CPU has; on macOS, leave OpenMP's functions to be found in what torch has loaded."""
    native = {"x86_64": ["-march=native"], "AMD64": ["-march=native"], "aarch64": ["-mcpu=native"]}
    undefined = ["-undefined", "dynamic_lookup", "-mcpu=native"] if sys.platform == "darwin" else []
    return undefined or native.get(platform.machine(), [])


def _digest(source: Path, command: list[str]) -> str:
    """Of all that decides what comes out: the text, the command, and what the compiler says of itself and the CPU."""
    macros = subprocess.run(
        [*command, "-dM", "-E", "-x", "c++", "-"], input=b"", capture_output=True, timeout=_TIMEOUT_S, check=False
    )
    texts = [path.read_bytes() for path in (source, *sorted(Path(__file__).parent.glob("*.h")))]
    return hashlib.sha256(b"\0".join([repr(command).encode(), macros.stdout, *texts])).hexdigest()[:16]


def _is_whole(path: Path) -> bool:
    """Whether a library is in the cache, undamaged: the system may crash on one that is not."""
    try:
        checksum = path.with_suffix(".sha256").read_text(encoding="ascii")
        return hashlib.sha256(path.read_bytes()).hexdigest() == checksum
    except (OSError, ValueError):
        return False


def _compile(name: str, source: Path, command: list[str], path: Path) -> None:
    """Make the library at `path`, and its checksum beside it; no other process meets half of either."""
    logger.info("compiling the %s kernel for this CPU, once ...", name)
    start_s = time.perf_counter()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        library = Path(folder, path.name)
        result = subprocess.run(
            [*command, str(source), "-o", str(library)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
        if result.returncode:
            log = path.with_suffix(".log")
            log.write_text(f"{shlex.join(result.args)}\n{result.stderr}", encoding="utf-8")
            exit = f"exit code {result.returncode}"
            first = next((line for line in result.stderr.splitlines() if "error" in line), exit)
            raise KernelError(f"{command[0]} failed on the kernel: {first.strip()}; see {log}")
        checksum = Path(folder, "checksum")
        checksum.write_text(hashlib.sha256(library.read_bytes()).hexdigest(), encoding="ascii")
        library.replace(path)
        checksum.replace(path.with_suffix(".sha256"))
    logger.info("compiled the %s kernel in %.1f s", name, time.perf_counter() - start_s)
