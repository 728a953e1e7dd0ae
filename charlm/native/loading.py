"""The libraries of kernels: they come with charlm, or are compiled at first use."""

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from charlm.native.compiler import Kernel, KernelError, Outcomes, compiled
from charlm.native.structs import Value

SHIPPED = Path(__file__).with_name("shipped")
"""Libraries in charlm's wheels: THREADS, which runs on any CPU, and a folder of the others for each level of CPU."""
THREADS = Kernel(Path(__file__).with_name("threads.cpp"), ())
"""The threads that all libraries share, and the level of this CPU."""


def load(*libraries: Kernel) -> list[ctypes.CDLL]:
    """Libraries that came with charlm, or were compiled at first use, in parallel.

    `CHARLM_KERNELS` allows only one of both, or neither. KernelError where there is none; later calls return or raise
    the same at once.
    """
    outcomes = _outcomes  # `preferring` replaces it
    if any(library not in outcomes for library in libraries):
        with _loading:
            outcomes = _outcomes
            if missing := [library for library in (THREADS, *libraries) if library not in outcomes]:
                outcomes.update(_share_threads(_get(missing)))
    loaded = []
    for library in libraries:
        outcome = outcomes[library]
        if isinstance(outcome, KernelError):
            raise KernelError(*outcome.args)  # a new one: an error keeps what its callers had, down to the tensors
        loaded.append(outcome)
    return loaded


def call(kernel: Kernel, function: str, **values: Value) -> ctypes.Structure:
    """Call a kernel's function with these values of its first struct, see `Struct.fill`; returns the struct."""
    arguments = kernel.structs[0].fill(**values)
    run(kernel, function, arguments)
    return arguments


def run(kernel: Kernel, function: str, arguments: ctypes.Structure) -> None:
    """Call a kernel's function with a struct. KernelError if the kernel does not compile."""
    [library] = load(kernel)
    called = getattr(library, function)
    called(ctypes.byref(arguments))
    if (recording := recorder.get()) is not None:
        recording.keep_call(called, arguments)


def works(kernel: Kernel) -> bool:
    """Whether a kernel compiles and loads."""
    try:
        load(kernel)
    except KernelError:
        return False
    return True


recorder: ContextVar[Any] = ContextVar("recorder", default=None)
"""What is told of each call of a kernel in this thread, see charlm/native/recording.py."""
_outcomes: Outcomes = {}
_loading = threading.Lock()
"""Held while libraries are loaded: a second thread that needs them waits instead of compiling them again."""
_preferred = ""


def used_kernels() -> str:
    """Where the loaded kernels came from: "compiled", or the level of those that came with charlm; "" if none are."""
    threads = _outcomes.get(THREADS, _MISSING)
    if isinstance(threads, KernelError):
        return ""
    return (_level() if Path(threads._name).parent == SHIPPED else "") or "compiled"


@contextlib.contextmanager
def preferring(kernels: str) -> Iterator[None]:
    """Within the block load the kernels that a run had, see `used_kernels`, where this machine has them."""
    before = used_kernels()
    _prefer(kernels, forget=before != kernels)
    try:
        yield
    finally:
        _prefer("", forget=used_kernels() != before)


def _prefer(kernels: str, *, forget: bool) -> None:
    global _outcomes, _preferred
    with _loading:
        _preferred = kernels
        if forget:
            _outcomes = {}


_MISSING = KernelError("no kernel for it comes with charlm for this CPU")


def _get(libraries: Sequence[Kernel]) -> Outcomes:
    try:
        sources = allowed_sources()
    except KernelError as error:
        return dict.fromkeys(libraries, error)
    outcomes: Outcomes = {}
    for get in sources[:: -1 if _preferred == "compiled" else 1]:
        if missing := [library for library in libraries if isinstance(outcomes.get(library, _MISSING), KernelError)]:
            outcomes |= get(missing)
    return outcomes


def allowed_sources() -> list[Callable[[Sequence[Kernel]], Outcomes]]:
    """Where kernels may come from; KernelError if `CHARLM_KERNELS` allows none, which holds for those of GPUs, too."""
    found = os.environ.get("CHARLM_KERNELS", "")
    sources = {"": [_shipped, compiled], "shipped": [_shipped], "compile": [compiled], "none": []}
    if found not in sources:
        raise KernelError(f"CHARLM_KERNELS: found {found}; allowed: {', '.join(filter(None, sources))}")
    if not sources[found]:
        raise KernelError("switched off by CHARLM_KERNELS")
    return sources[found]


def _shipped(libraries: Sequence[Kernel]) -> Outcomes:
    """The libraries that came with charlm for this CPU; KernelErrors for the others."""
    outcomes: Outcomes = {}
    for library in libraries:
        path = shipped_path(SHIPPED if library is THREADS else SHIPPED / _level(), library)
        try:
            outcomes[library] = ctypes.CDLL(str(path)) if path.is_file() else _MISSING
        except OSError as error:
            outcomes[library] = KernelError(f"{path} cannot be loaded ({error}); install charlm again")
    return outcomes


def _level() -> str:
    """The folder of SHIPPED for this CPU: the preferred level, or else the fastest; "" if there is none."""
    levels = [level for level in cpu_levels() if (SHIPPED / level).is_dir()]
    return _preferred if _preferred in levels else next(iter(levels), "")


def shipped_path(folder: Path, library: Kernel) -> Path:
    """The file of a library that comes with charlm."""
    return folder / f"{library.name}-{library.digest}.so"


@functools.cache
def cpu_levels() -> list[str]:
    """The levels that this CPU and its system support, the fastest first; empty where no kernels came with charlm."""
    path = shipped_path(SHIPPED, THREADS)
    try:
        function = ctypes.CDLL(str(path)).cpu_levels
    except OSError:  # missing, or the system refuses it
        return []
    function.restype = ctypes.c_char_p
    return function().decode().split()


def _share_threads(outcomes: Outcomes) -> Outcomes:
    """Give all libraries the functions of `THREADS`; without these, its error to all."""
    shared = outcomes.get(THREADS) or _outcomes[THREADS]
    if isinstance(shared, KernelError):
        return dict.fromkeys(outcomes, shared)
    if THREADS in outcomes:
        _use_openmp(shared)
    functions = ctypes.c_void_p * 2
    for library in outcomes.values():
        if not isinstance(library, KernelError) and hasattr(library, "threads"):
            functions.in_dll(library, "threads")[:] = functions.in_dll(shared, "threads")[:]
    return outcomes


def _use_openmp(threads: ctypes.CDLL) -> None:
    """Let kernels run in the threads of torch's OpenMP runtime, if it has GCC's interface."""
    process = ctypes.CDLL(None if os.name == "posix" else "kernel32")
    names = "GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"
    functions = [getattr(process, name, None) for name in names]
    if all(functions):
        threads.use_openmp(*functions)
