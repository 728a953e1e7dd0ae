"""Builds C++ kernels: compiles them for this machine at first use, and keeps the libraries in the cache."""

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

# Loads the OpenMP runtime whose threads the kernels share.
import torch

from charlm.errors import DataError
from charlm.system.cache import cache_dir, remove_leftovers
from charlm.system.console import say

_FLAGS = ["-std=c++17", "-O3", "-ffp-contract=fast", "-fPIC", "-shared", "-fvisibility=hidden"]
_TIMEOUT_S = 300


class KernelError(Exception):
    """A short reason why this machine cannot run a kernel."""


def load(*sources: Path) -> list[ctypes.CDLL]:
    """The libraries of C++ files. At first use they are compiled, in parallel.

    KernelError if there is no compiler, if it fails, or if torch has no OpenMP. The outcome is remembered: later
    calls return or raise the same at once.
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
    return KernelError(f"the kernel could not be built: {error}{_remedy()}")


def _remedy() -> str:
    return "; fix or unset CXX" if os.environ.get("CXX") else ""


def _name(source: Path) -> str:
    return source.parent.name if source.stem == "cpu" else source.stem


def _open(path: Path) -> ctypes.CDLL | KernelError:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        return _fault(error)


def find_compiler() -> list[str]:
    """The command in $CXX, or else the first usual compiler that is installed."""
    if named := shlex.split(os.environ.get("CXX", "")):
        return named
    found = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    if found is None:
        raise KernelError("no C++ compiler; install g++ or clang++ for speed")
    return [found]


def _machine_flags() -> list[str]:
    """Use all instructions of this CPU. On macOS, resolve OpenMP's functions at load time, in torch's runtime."""
    is_arm = platform.machine() in ("aarch64", "arm64")
    flags = ["-mcpu=native"] if is_arm else ["-march=native"] if platform.machine() in ("x86_64", "AMD64") else []
    return [*flags, "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else flags


def _paths(sources: list[Path], command: list[str]) -> dict[Path, Path]:
    """The file of each library. Its name contains a digest of everything that determines the result.

    That is the source and the headers beside it, the headers of this folder, the command, and the compiler's
    predefined macros, which identify its version and the CPU.
    """
    macros = subprocess.run(
        [*command, "-dM", "-E", "-x", "c++", "-"], input=b"", capture_output=True, timeout=_TIMEOUT_S, check=False
    )
    folder = cache_dir() / "kernels"
    paths = {}
    for source in sources:
        headers = [file for place in (Path(__file__).parent, source.parent) for file in sorted(place.glob("*.h"))]
        texts = [file.read_bytes() for file in dict.fromkeys([*headers, source])]
        digest = hashlib.sha256(b"\0".join([repr(command).encode(), macros.stdout, *texts])).hexdigest()[:16]
        paths[source] = folder / f"{_name(source)}-{digest}.so"
    return paths


def _is_whole(path: Path) -> bool:
    """Whether an undamaged library is in the cache; loading a damaged one may crash the process."""
    try:
        checksum = path.with_suffix(".sha256").read_text(encoding="ascii")
        return hashlib.sha256(path.read_bytes()).hexdigest() == checksum
    except (OSError, ValueError):
        return False


def _compile_all(sources: list[Path], command: list[str], paths: dict[Path, Path]) -> dict[Path, KernelError | None]:
    """Compile in parallel; for each library the error, or None if it was built."""
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
    """Build the library and its checksum, and move each to its place in one step: no process sees half a file."""
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
            f"{path.parent}: kernels cannot be stored there ({error}); set CHARLM_CACHE to another folder"
        )
    except subprocess.SubprocessError as error:
        return _fault(error)
    return None


def _compiler_fault(result: "subprocess.CompletedProcess[str]", log: Path) -> KernelError:
    """The compiler's first error line, and the file with all of them."""
    lines = result.stderr.splitlines()
    first = next((line.strip() for line in lines if "error" in line), f"exit code {result.returncode}")
    with contextlib.suppress(OSError):
        log.write_text(f"{shlex.join(result.args)}\n{result.stderr}", encoding="utf-8")
        first += f"; see {log}"
    return KernelError(f"{result.args[0]} failed on the kernel: {first}{_remedy()}")
