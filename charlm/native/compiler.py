"""Kernels, and their libraries: compiled for this machine, and kept in the cache."""

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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from charlm.errors import DataError
from charlm.native.structs import Struct
from charlm.system.cache import cache_folder, limit_cache, open_private
from charlm.system.console import say
from charlm.system.files import replace_file
from charlm.system.host import count_cores, free_bytes

_FLAGS = ["-std=c++20", "-O3", "-ffp-contract=fast", "-fPIC", "-shared", "-fvisibility=hidden"]
_COMPILER_BYTES = 400_000_000
"""g++ 12 takes up to 350 MB for a kernel."""
_MOST_S, _MOST_BYTES = 300, 4_000_000_000
"""The most time, and address space, of a compiler. g++ 12 takes up to 0.5 GB of it for a kernel."""
_LIMITS = f'ulimit -v {_MOST_BYTES // 1024} 2>/dev/null; ulimit -t {_MOST_S} 2>/dev/null; exec "$@"'
_LIMITED = [] if sys.platform == "win32" else ["/bin/sh", "-c", _LIMITS, "sh"]
_CHECKSUM = ".sha256"
"""Suffix of the file beside a library. A library that was cut would end the process without a word."""
_ELSEWHERE = "name a folder on another disk in CHARLM_CACHE"
_compilations: list[tuple[float, float]] = []
"""When each compilation began, as time.perf_counter() tells it, and its seconds."""


class KernelError(Exception):
    """A short reason why this machine cannot run a kernel."""


class Kernel:
    """A C++ file that becomes a library. Each of its functions takes a pointer to a struct.

    Args:
        source: the file.
        structs: those of its functions' arguments; default: its `struct Arguments`.
        name: the library's name; default: the file's.
        text: C++ that follows the file.
    """

    def __init__(self, source: Path, structs: tuple[Struct, ...] | None = None, name: str = "", text: str = "") -> None:
        self.source, self.name, self.text = source, name or source.stem, text
        self.structs: tuple[Struct, ...] = (Struct(source),) if structs is None else structs

    @property
    def digest(self) -> str:
        """Identifies what is compiled: the source, the headers beside it, and the text."""
        headers = sorted(self.source.parent.glob("*.h"))
        texts = [file.read_bytes() for file in (*headers, self.source)]
        return _sha256(*texts, self.text.encode())[:16]


def _sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


Outcomes = dict[Kernel, ctypes.CDLL | KernelError]
"""For each kernel its library, or why there is none."""


def compiled(libraries: Sequence[Kernel]) -> Outcomes:
    """Each library from the cache, or compiled now; KernelErrors where that fails."""
    try:
        command = [*find_compiler(), *_FLAGS, *_machine_flags()]
        paths = _paths(libraries, command)
        cached = {library: found for library, path in paths.items() if (found := _cached(path))}
        missing = {library: path for library, path in paths.items() if library not in cached}
        return cached | (_compile_all(missing, command) if missing else {})
    except KernelError as error:
        return dict.fromkeys(libraries, error)
    except (OSError, TypeError, ValueError, DataError) as error:
        return dict.fromkeys(libraries, _fault(f"the kernel could not be built: {error}"))


def _fault(what: str) -> KernelError:
    return KernelError(what + ("; fix or unset CXX" if os.environ.get("CXX") else ""))


def _cached(path: Path) -> ctypes.CDLL | KernelError | None:
    """The library from the cache; None if it is missing or damaged, or if others could have written it."""
    try:
        with open_private(path) as file, open_private(path.with_suffix(_CHECKSUM)) as checksum:
            is_whole = _sha256(file.read()).encode() == checksum.read()
    except OSError:
        return None
    return _loaded(path) if is_whole else None


def _loaded(path: Path) -> ctypes.CDLL | KernelError:
    """A whole library; KernelError if the system refuses it, because compiling it again would not change that."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        return KernelError(f"{path} cannot be loaded ({error}); {_ELSEWHERE}")


def find_compiler() -> list[str]:
    """The command in $CXX, or else the first usual compiler that is installed."""
    if named := shlex.split(os.environ.get("CXX", "")):
        if shutil.which(named[0]) is None:
            raise KernelError(f"{named[0]}: not found; install g++ or clang++, or fix or unset CXX")
        return named
    for name in ("g++", "clang++", "c++"):
        if shutil.which(name):
            return [name]
    raise KernelError("no C++ compiler; install g++ or clang++ for speed")


def _machine_flags() -> list[str]:
    """Use all instructions of this CPU."""
    flags: list[str] = []
    if platform.machine() in ("aarch64", "arm64"):
        flags.append("-mcpu=native")
    if platform.machine() in ("x86_64", "AMD64"):
        flags.append("-march=native")
    if sys.platform == "win32":
        flags.append("-static")  # Windows does not look for the compiler's own libraries where they are
    if sys.platform == "darwin":
        flags += ["-undefined", "dynamic_lookup"]
    return flags


def _paths(libraries: Sequence[Kernel], command: list[str]) -> dict[Kernel, Path]:
    """The file of each library, named by a digest of its own digest, the command, and the compiler's predefined macros,
    which identify its version and the CPU.
    """
    folder = cache_folder("kernels")
    if sys.platform == "linux" and os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise KernelError(f"{folder}: found a disk mounted noexec, from which no kernel can be loaded; {_ELSEWHERE}")
    macros = _run([*command, "-dM", "-E", "-x", "c++", os.devnull]).stdout
    paths = {}
    for library in libraries:
        digest = _sha256(repr(command).encode(), macros.encode(), library.digest.encode())
        paths[library] = folder / f"{library.name}-{digest[:16]}.so"
    return paths


def _compile_all(paths: dict[Kernel, Path], command: list[str]) -> Outcomes:
    """Compile as many at a time as the machine can take, and load them; returns a library or an error for each."""
    say("compile", f"for this CPU and these options, once: {', '.join(library.name for library in paths)} ...")
    start_s = time.perf_counter()
    cores, free = count_cores(), free_bytes()
    compilers = cores if free is None else min(cores, free // _COMPILER_BYTES)
    with ThreadPoolExecutor(max(1, compilers)) as pool:
        results = pool.map(lambda library: _compile(library, command, paths[library]), paths)
        outcomes = dict(zip(paths, results, strict=True))
    limit_cache("kernels")
    seconds = time.perf_counter() - start_s
    _compilations.append((start_s, seconds))
    if not any(isinstance(outcome, KernelError) for outcome in outcomes.values()):
        say("compile", f"done in {seconds:.1f} s")
    return outcomes


def compiled_s(since_s: float) -> float:
    """Seconds of the compilations that began after `since_s`."""
    return sum(seconds for start_s, seconds in _compilations if start_s >= since_s)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a compiler to its end; KernelError if it takes too long. Its own children end by the limit of CPU time."""
    try:
        done = subprocess.run(
            [*_LIMITED, *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_MOST_S,
        )
    except subprocess.TimeoutExpired:
        raise _fault(f"{command[0]} took longer than {_MOST_S} s") from None
    done.args = command
    return done


def _compile(library: Kernel, command: list[str], path: Path) -> ctypes.CDLL | KernelError:
    """Build the library, put it into its place in one step, and load it."""
    with tempfile.TemporaryDirectory(prefix="charlm-") as folder:
        text, out = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
        text.write_text(library.text, encoding="utf-8")
        result = _run([*command, "-include", str(library.source), str(text), "-o", str(out)])
        if result.returncode:
            return _compiler_fault(result, path.with_suffix(".log"))
        if opened := _cached(path):  # another process was faster
            return opened
        data = out.read_bytes()
        replace_file(path, data, 0o700)
        replace_file(path.with_suffix(_CHECKSUM), _sha256(data).encode(), 0o600)
    return _loaded(path)


def _compiler_fault(result: subprocess.CompletedProcess[str], log: Path) -> KernelError:
    """The compiler's first error line, or else its last one, and the file with all of them."""
    lines = result.stderr.splitlines()
    last = lines[-1] if lines else f"exit code {result.returncode}"
    first = next((line.strip() for line in lines if "error" in line), last)
    with contextlib.suppress(OSError):
        replace_file(log, f"{shlex.join(result.args)}\n{result.stderr}".encode())
        first += f"; see {log}"
    return _fault(f"{result.args[0]} failed on the kernel: {first}")
