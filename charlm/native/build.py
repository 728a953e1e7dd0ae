"""C++ kernels: compiled for this machine at first use, and kept in the cache."""

import contextlib
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Torch brings the OpenMP runtime whose threads the kernels share.
import torch

from charlm.errors import DataError
from charlm.system.cache import cache_dir, remove_leftovers
from charlm.system.console import say

_FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fPIC", "-shared", "-fvisibility=hidden"]
_TIMEOUT_S = 300


class KernelError(Exception):
    """Why this machine cannot run a kernel, in a few words."""


def load(*sources: Path) -> list[ctypes.CDLL]:
    """The libraries made of C++ files and the headers of this folder, compiled at first use, side by side.

    KernelError where there is no compiler, it fails, or torch has no OpenMP; asked again, the same answer at once.
    """
    if missing := [source for source in sources if source not in _outcomes]:
        _outcomes.update(_make(missing))
    libraries = []
    for source in sources:
        outcome = _outcomes[source]
        if isinstance(outcome, KernelError):
            raise outcome
        libraries.append(outcome)
    return libraries


_outcomes: dict[Path, ctypes.CDLL | KernelError] = {}


def _make(sources: list[Path]) -> dict[Path, ctypes.CDLL | KernelError]:
    try:
        if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
            raise KernelError(f"PyTorch {torch.__version__} has no OpenMP runtime that kernels can share")
        command = [*find_compiler(), *_FLAGS, *_machine_flags()]
        paths = _paths(sources, command)
        new = [source for source in sources if not _is_whole(paths[source])]
        failures = _compile_all(new, command, paths) if new else {}
        return {source: failures.get(source) or _open(path) for source, path in paths.items()}
    except KernelError as error:
        return dict.fromkeys(sources, error)
    except (OSError, TypeError, ValueError, DataError, subprocess.SubprocessError) as error:
        return dict.fromkeys(sources, _fault(error))


def _fault(error: Exception) -> KernelError:
    return KernelError(f"the kernel could not be made: {error}{_remedy()}")


def _remedy() -> str:
    return "; mend or unset CXX" if os.environ.get("CXX") else ""


def _name(source: Path) -> str:
    return source.parent.name if source.stem == "cpu" else source.stem


def _open(path: Path) -> ctypes.CDLL | KernelError:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        return _fault(error)


def find_compiler() -> list[str]:
    """The command of $CXX, else of the first of the usual compilers that there is."""
    if named := shlex.split(os.environ.get("CXX", "")):
        return named
    found = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    if found is None:
        raise KernelError("no C++ compiler; install g++ or clang++ for speed")
    return [found]


def _machine_flags() -> list[str]:
    """Use all that this CPU has; on macOS, leave OpenMP's functions to be found in what torch has loaded."""
    is_arm = platform.machine() in ("aarch64", "arm64")
    flags = ["-mcpu=native"] if is_arm else ["-march=native"] if platform.machine() in ("x86_64", "AMD64") else []
    return [*flags, "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else flags


def _paths(sources: list[Path], command: list[str]) -> dict[Path, Path]:
    """Where each library is kept: a digest of all that decides what comes out is part of its name.

    That is the text, the command, and what the compiler says of itself and the CPU.
    """
    macros = subprocess.run(
        [*command, "-dM", "-E", "-x", "c++", "-"], input=b"", capture_output=True, timeout=_TIMEOUT_S, check=False
    )
    headers = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.h"))]
    common = b"\0".join([repr(command).encode(), macros.stdout, *headers])
    folder = cache_dir() / "kernels"
    digests = {source: hashlib.sha256(common + b"\0" + source.read_bytes()).hexdigest()[:16] for source in sources}
    return {source: folder / f"{_name(source)}-{digest}.so" for source, digest in digests.items()}


def _is_whole(path: Path) -> bool:
    """Whether a library is in the cache, undamaged: the system may crash on one that is not."""
    try:
        checksum = path.with_suffix(".sha256").read_text(encoding="ascii")
        return hashlib.sha256(path.read_bytes()).hexdigest() == checksum
    except (OSError, ValueError):
        return False


def _compile_all(sources: list[Path], command: list[str], paths: dict[Path, Path]) -> dict[Path, KernelError | None]:
    """Make the libraries side by side; of each, why that failed."""
    remove_leftovers(cache_dir() / "kernels", "tmp*", _TIMEOUT_S)
    say("compile", f"for this CPU, once: {', '.join(map(_name, sources))} ...")
    start_s = time.perf_counter()
    with ThreadPoolExecutor(len(sources)) as pool:
        outcomes = pool.map(lambda source: _compile(source, command, paths[source]), sources)
        failures = dict(zip(sources, outcomes, strict=True))
    if not all(failures.values()):
        say("compile", f"done in {time.perf_counter() - start_s:.1f} s")
    return failures


def _compile(source: Path, command: list[str], path: Path) -> KernelError | None:
    """Make the library at `path`, and its checksum beside it; no other process meets half of either."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            library, checksum = Path(folder, path.name), Path(folder, "checksum")
            result = subprocess.run(
                [*command, str(source), "-o", str(library)],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
            if result.returncode:
                return _compiler_fault(result, path.with_suffix(".log"))
            checksum.write_text(hashlib.sha256(library.read_bytes()).hexdigest(), encoding="ascii")
            library.replace(path)
            checksum.replace(path.with_suffix(".sha256"))
    except OSError as error:
        return KernelError(
            f"{path.parent}: kernels cannot be kept there ({error}); name another folder in CHARLM_CACHE"
        )
    except subprocess.SubprocessError as error:
        return _fault(error)
    return None


def _compiler_fault(result: "subprocess.CompletedProcess[str]", log: Path) -> KernelError:
    """The compiler's first line on the fault, and where all of them are."""
    lines = result.stderr.splitlines()
    first = next((line.strip() for line in lines if "error" in line), f"exit code {result.returncode}")
    with contextlib.suppress(OSError):
        log.write_text(f"{shlex.join(result.args)}\n{result.stderr}", encoding="utf-8")
        first += f"; see {log}"
    return KernelError(f"{result.args[0]} failed on the kernel: {first}{_remedy()}")
