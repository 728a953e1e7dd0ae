"""Libraries of kernels: compiled for this machine, and kept in the cache."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from charlm.errors import DataError
from charlm.system.cache import cache_folder, limit_cache, open_private
from charlm.system.console import say
from charlm.system.files import move, remove_leftovers, replace_file, temporary_beside
from charlm.system.host import count_cores, free_bytes

if TYPE_CHECKING:
    from charlm.native.build import Kernel

_FLAGS = ["-std=c++20", "-O3", "-ffp-contract=fast", "-fPIC", "-shared", "-fvisibility=hidden"]


class KernelError(Exception):
    """A short reason why this machine cannot run a kernel."""


Outcomes: TypeAlias = "dict[Kernel, ctypes.CDLL | KernelError]"
"""For each kernel its library, or why there is none."""


def compiled(libraries: Sequence[Kernel]) -> Outcomes:
    """Each library from the cache, or compiled now; KernelErrors where that fails."""
    try:
        command = [*find_compiler(), *_FLAGS, *_machine_flags()]
        paths = _paths(libraries, command)
        cached = {library: outcome for library, path in paths.items() if (outcome := _find(library, path))}
        missing = [library for library in libraries if library not in cached]
        return cached | (_compile_all(missing, command, paths) if missing else {})
    except KernelError as error:
        return dict.fromkeys(libraries, error)
    except (OSError, TypeError, ValueError, DataError) as error:
        return dict.fromkeys(libraries, _fault(f"the kernel could not be built: {error}"))


def _fault(what: str) -> KernelError:
    return KernelError(what + ("; fix or unset CXX" if os.environ.get("CXX") else ""))


def _find(library: Kernel, path: Path) -> ctypes.CDLL | KernelError | None:
    """The library from the cache; None if it is missing or damaged, or if others could have written it."""
    try:
        with open_private(path) as file, open_private(path.with_suffix(".sha256")) as checksum:
            data = file.read()
            if hashlib.sha256(data).hexdigest().encode() != checksum.read(_DIGEST_BYTES + 1):
                return None
            return _open_file(library, file, data)
    except OSError:
        return None


_DIGEST_BYTES = 64


def _open_file(library: Kernel, file: BinaryIO, data: bytes) -> ctypes.CDLL | KernelError:
    """Load the library from the opened file, even if another file has taken its name."""
    try:
        if _DESCRIPTORS.is_dir():
            # The linker takes equal names for equal libraries, and descriptors are reused: another slash each time.
            opened = ctypes.CDLL(f"{_DESCRIPTORS}{'/' * next(_slashes)}{file.fileno()}")
        else:
            with tempfile.TemporaryDirectory(prefix="charlm-", ignore_cleanup_errors=True) as folder:
                copy = Path(folder, "kernel.so")
                copy.write_bytes(data)
                opened = ctypes.CDLL(str(copy))
    except OSError as error:
        return _fault(f"the kernel could not be built: {error}")
    return library.checked(opened)


_DESCRIPTORS = Path("/proc/self/fd")
"""Linux: the files that this process has open."""
_slashes = itertools.count(1)


def find_compiler() -> list[str]:
    """The command in $CXX, or else the first usual compiler that is installed."""
    if named := shlex.split(os.environ.get("CXX", "")):
        if shutil.which(named[0]) is None:
            raise KernelError(f"{named[0]}: not found; install g++ or clang++, or fix or unset CXX")
        return named
    compiler = next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None)
    if compiler is None:
        raise KernelError("no C++ compiler; install g++ or clang++ for speed")
    return [compiler]


def _machine_flags() -> list[str]:
    """Use all instructions of this CPU."""
    is_arm = platform.machine() in ("aarch64", "arm64")
    flags = ["-mcpu=native"] if is_arm else ["-march=native"] if platform.machine() in ("x86_64", "AMD64") else []
    if sys.platform == "win32":
        return [*flags, "-static"]  # Windows does not look for the compiler's own libraries where they are
    return [*flags, "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else flags


def _paths(libraries: Sequence[Kernel], command: list[str]) -> dict[Kernel, Path]:
    """The file of each library. Its name contains a digest of everything that determines the result.

    That is the library's own digest, the command, and the compiler's predefined macros, which identify its version and
    the CPU.
    """
    folder = cache_folder("kernels")
    macros = _run([*command, "-dM", "-E", "-x", "c++", os.devnull]).stdout
    paths = {}
    for library in libraries:
        parts = [repr(command).encode(), macros.encode(), library.digest.encode()]
        digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
        paths[library] = folder / f"{library.name}-{digest}.so"
    return paths


def _cannot_store(folder: Path, error: OSError) -> KernelError:
    return KernelError(f"{folder}: kernels cannot be stored there ({error}); set CHARLM_CACHE to another folder")


def _compile_all(libraries: Sequence[Kernel], command: list[str], paths: dict[Kernel, Path]) -> Outcomes:
    """Compile as many at a time as the machine can take, and load them; returns a library or an error for each."""
    remove_leftovers(next(iter(paths.values())).parent)
    say("compile", f"for this CPU and these options, once: {', '.join(library.name for library in libraries)} ...")
    start_s = time.perf_counter()
    with ThreadPoolExecutor(min(len(libraries), _compilers())) as pool:
        results = pool.map(lambda library: _compile(library, command, paths[library]), libraries)
        outcomes = dict(zip(libraries, results, strict=True))
    limit_cache("kernels")
    seconds = time.perf_counter() - start_s
    _compilations.append((start_s, seconds))
    if not any(isinstance(outcome, KernelError) for outcome in outcomes.values()):
        say("compile", f"done in {seconds:.1f} s")
    return outcomes


_compilations: list[tuple[float, float]] = []
"""When each compilation began, as time.perf_counter() tells it, and its seconds."""


def compiled_s(since_s: float) -> float:
    """Seconds of the compilations that began after `since_s`."""
    return sum(seconds for start_s, seconds in _compilations if start_s >= since_s)


def _compilers() -> int:
    """How many compilers may run at once: one for each core if there is enough memory."""
    cores, free = count_cores(), free_bytes()
    return max(1, cores if free is None else min(cores, free // _COMPILER_BYTES))


_COMPILER_BYTES = 400_000_000
"""g++ 12 takes up to 350 MB for a kernel."""


def _compile(library: Kernel, command: list[str], path: Path) -> ctypes.CDLL | KernelError:
    """Build the library and its checksum, move each to its place in one step, and load it."""
    code, compiled = temporary_beside(path), temporary_beside(path)
    try:
        code.write_text(library.code, encoding="utf-8")
        result = _run([*command, "-include", str(library.source), "-x", "c++", str(code), "-o", str(compiled)])
        if result.returncode:
            return _compiler_fault(result, path.with_suffix(".log"))
        compiled.chmod(0o700)
        with open_private(compiled) as file:
            data = file.read()
            opened = _open_file(library, file, data)
        move(compiled, path)
        replace_file(path.with_suffix(".sha256"), hashlib.sha256(data).hexdigest().encode(), 0o600)
        return opened
    except ChildProcessError as error:
        return _fault(f"the kernel could not be built: {error}")
    except OSError as error:
        return _cannot_store(path.parent, error)
    finally:
        for file in (code, compiled):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)


_MOST_S = 300
_MOST_BYTES = 4_000_000_000
"""Of address space, for each process of a compiler. g++ 12 takes up to 0.5 GB for a kernel."""
_LIMITS = f'ulimit -v {_MOST_BYTES // 1024} 2>/dev/null; ulimit -t {_MOST_S} 2>/dev/null; exec "$@"'
_LIMITED = ["/bin/sh", "-c", _LIMITS, "sh"] if sys.platform != "win32" else []


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a compiler, limited in memory and time; ChildProcessError if it cannot start, or takes too long."""
    try:
        result = subprocess.run(
            [*_LIMITED, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_MOST_S,
        )
    except subprocess.TimeoutExpired:
        raise ChildProcessError(f"{command[0]} took longer than {_MOST_S} s") from None
    except OSError as error:
        raise ChildProcessError(f"{command[0]} cannot be started: {error.strerror}") from error
    return subprocess.CompletedProcess(command, result.returncode, result.stdout, result.stderr)


def _compiler_fault(result: subprocess.CompletedProcess[str], log: Path) -> KernelError:
    """The compiler's first error line, or else its last one, and the file with all of them."""
    lines = result.stderr.splitlines()
    last = lines[-1] if lines else f"exit code {result.returncode}"
    first = next((line.strip() for line in lines if "error" in line), last)
    with contextlib.suppress(OSError):
        replace_file(log, f"{shlex.join(result.args)}\n{result.stderr}".encode())
        first += f"; see {log}"
    return _fault(f"{result.args[0]} failed on the kernel: {first}")
