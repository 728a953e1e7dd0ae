"""Compilation of kernels: the cache, and what is said where it fails."""

import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from charlm.cells import RHN
from charlm.layers import RecurrentLayers
from charlm.native import compiler, loading
from charlm.native.kernels import SHARED_KERNELS, kernel_of
from charlm.native.loading import Kernel, KernelError
from charlm.system import cache as cache_module

COMPILERS = ("g++", "clang++", "c++")
pytestmark = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="no C++ compiler")

SOURCE = """\
#include <cstddef>
typedef std::ptrdiff_t Index;
struct Arguments {
  Index n, threads;
  const float* a;   // of n numbers
  double factor;
  float* sum;

  Index not_a_field() const { return n; }
};
extern "C" __attribute__((visibility("default"))) void add_up(const Arguments* a) {
  *a->sum = 0;
  for (Index i = 0; i < a->n; i++) *a->sum += a->a[i] * a->factor;
}
"""


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries loaded by other tests are not known here, nor these there; except the one of threads."""
    (threads,) = loading.load(loading.THREADS)
    monkeypatch.setattr(loading, "_outcomes", {loading.THREADS: threads})
    monkeypatch.setattr(loading, "SHIPPED", Path("nowhere"))


def new_process() -> None:
    """From here on no library but that of threads is known."""
    for library in loading._outcomes.keys() - {loading.THREADS}:
        del loading._outcomes[library]


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    path = tmp_path / "adding.cpp"
    path.write_text(SOURCE)
    return Kernel(path)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[Kernel], list[str]]:
    """What is said when a process uses the kernel for the first time."""

    def said(kernel: Kernel) -> list[str]:
        new_process()
        capsys.readouterr()
        loading.load(kernel)
        return [line.split(" in ")[0] for line in capsys.readouterr().err.splitlines()]

    return said


@pytest.fixture(scope="session")
def threads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of threads, compiled."""
    folder = tmp_path_factory.mktemp("threads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHARLM_CACHE", str(folder))
        compiler.compiled([loading.THREADS])
    return next((folder / "kernels").glob("*.so"))


@pytest.fixture
def ship(kernel: Kernel, threads: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """Makes the kernel come with charlm for levels of CPU, all of which this one has."""

    def ship(levels: list[str]) -> None:
        loading.load(kernel)
        new_process()
        library = next((cache / "kernels").glob("adding*.so")).read_bytes()
        shutil.rmtree(cache / "kernels")
        shutil.copytree(threads.parent, cache / "kernels")
        for level in levels:
            (cache / "shipped" / level).mkdir(parents=True)
            loading.shipped_path(cache / "shipped" / level, kernel).write_bytes(library)
            loading.shipped_path(cache / "shipped", loading.THREADS).write_bytes(threads.read_bytes())
        del loading._outcomes[loading.THREADS]
        monkeypatch.setattr(loading, "SHIPPED", cache / "shipped")
        monkeypatch.setattr(loading, "cpu_levels", lambda: levels)

    return ship


COMPILES = ["compile  for this CPU and these options, once: adding ...", "compile  done"]


def compiled(cache: Path) -> list[str]:
    """Names of what is in the cache, without digests, and without the checksum beside each library."""
    files = [path for path in (cache / "kernels").iterdir() if path.suffix != ".sha256"]
    return sorted(path.name.split("-")[0] + path.suffix for path in files)


def add_up(kernel: Kernel, *numbers: float) -> float:
    total = torch.zeros(1)
    kernel("add_up", n=len(numbers), a=torch.tensor(numbers).float(), factor=0.5, sum=total)
    return total.item()


def test_a_kernel_is_compiled_once_for_a_source_and_a_compiler(
    kernel: Kernel, cache: Path, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lines(kernel) == COMPILES
    assert add_up(kernel, 1, 2, 4) == 3.5
    assert lines(kernel) == []
    assert compiled(cache) == ["adding.so"]
    kernel.source.write_text(SOURCE + "// changed\n")
    assert lines(kernel) == COMPILES
    monkeypatch.setenv("CXX", shlex.join([*compiler.find_compiler(), "-DANY"]))
    assert lines(kernel) == COMPILES
    assert compiled(cache) == ["adding.so"] * 3
    other = Kernel(kernel.source.with_name("doubling.cpp"))
    other.source.write_text(SOURCE.replace("a->factor;", "a->factor * 2;"))
    assert (add_up(kernel, 1), add_up(other, 1)) == (0.5, 1.0)


def test_a_kernel_is_compiled_where_open_files_cannot_be_replaced(
    kernel: Kernel, cache: Path, lines: Any, windows: None
) -> None:
    assert (lines(kernel), lines(kernel)) == (COMPILES, [])
    assert (add_up(kernel, 1, 2, 4), compiled(cache)) == (3.5, ["adding.so"])


@pytest.mark.parametrize("suffix", [".so", ".sha256"])
@pytest.mark.parametrize("damage", ["cut", "missing", "changed", "writable by others"])
def test_a_library_that_is_damaged_or_not_ones_own_is_made_again(
    kernel: Kernel, cache: Path, suffix: str, damage: str, lines: Any
) -> None:
    loading.load(kernel)
    (path,) = (cache / "kernels").glob(f"*{suffix}")
    data = path.read_bytes()
    path.unlink()  # This process has it mapped.
    if damage != "missing":
        path.write_bytes({"cut": data[: len(data) // 2], "changed": b"x" + data[1:]}.get(damage, data))
        path.chmod(0o777 if damage == "writable by others" else 0o600)
    assert lines(kernel) == COMPILES
    assert path.stat().st_mode & 0o022 == 0
    assert lines(kernel) == []


def test_above_its_bound_the_cache_loses_the_kernel_that_was_not_used_for_the_longest_time(
    kernel: Kernel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "_RECENT_S", 0)
    others = [Kernel(kernel.source.with_name(f"{name}.cpp")) for name in ("other", "third")]
    for other in others:
        other.source.write_text(SOURCE)
    for age_s, used in ((900, kernel), (800, others[0]), (700, kernel)):
        loading.load(used)
        new_process()
        for path in (cache / "kernels").iterdir():
            if path.stat().st_mtime > time.time() - 60:
                os.utime(path, (time.time() - age_s,) * 2)
    size = sum(path.stat().st_size for path in (cache / "kernels").iterdir())
    monkeypatch.setitem(cache_module.BOUNDS, "kernels", size)
    loading.load(others[1])
    assert compiled(cache) == ["adding.so", "third.so"]


def test_a_folder_that_others_can_write_to_is_not_used(kernel: Kernel, cache: Path) -> None:
    (cache / "kernels").mkdir(parents=True)
    (cache / "kernels").chmod(0o777)
    with pytest.raises(KernelError, match=r"kernels: the cache is not safe: others may write to it \(chmod go-w"):
        loading.load(kernel)


def test_threads_that_need_a_kernel_at_once_compile_it_once(kernel: Kernel, capfd: pytest.CaptureFixture[str]) -> None:
    both = Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: both.wait(10) is not None and kernel.works(), range(2))) == [True, True]
    assert capfd.readouterr().err.count("compile  for this CPU") == 1


@pytest.mark.slow
def test_processes_that_compile_at_once(kernel: Kernel, cache: Path) -> None:
    code = (
        "import pathlib, sys; from charlm.native.loading import Kernel, load; load(Kernel(pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(kernel.source)]
    env = {**os.environ, "CHARLM_KERNELS": "compile"}
    running = [subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert compiled(cache) == ["adding.so", "threads.so"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=str)
def test_no_compiler_outlives_charlm(kernel: Kernel, tmp_path: Path, number: int) -> None:
    script, pids = tmp_path / "compiler", tmp_path / "pids"
    hangs = f"sleep 600 & echo $$ $! >{pids}.part; mv {pids}.part {pids}; wait"
    script.write_text(f'#!/bin/sh\ncase "$*" in *-dM*) ;; *) {hangs};; esac')
    script.chmod(0o700)
    code = (
        "import pathlib, sys; from charlm.native.loading import Kernel, load; load(Kernel(pathlib.Path(sys.argv[1])))"
    )
    env = {**os.environ, "CHARLM_KERNELS": "compile", "CXX": str(script)}
    with subprocess.Popen([sys.executable, "-c", code, kernel.source], env=env, stderr=subprocess.DEVNULL) as process:
        _wait_until(pids.exists)
        process.send_signal(number)
        assert process.wait(10) != 0
    for pid in pids.read_text().split():
        _wait_until(lambda pid=pid: not _runs(pid))


def _runs(pid: str) -> bool:
    """Whether the process exists; one that nobody has waited for does not count."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.startswith("Z")


def _wait_until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_a_step_whose_kernel_would_take_minutes_to_compile_runs_in_pytorch() -> None:
    layers = RecurrentLayers(RHN(hidden=4, depth=90), 3)
    description = layers.select_backend("cpu").description
    assert re.sub("[0-9,]{6,}", "N", description) == (
        "rhn: reference loop; no fused CPU kernel: its step is N characters of C++; allowed: N"
    )


@pytest.mark.parametrize(
    ("cores", "free_bytes", "compilers"), [(2, None, 2), (8, 10**11, 8), (8, 10**9, 2), (2, 10**6, 1)]
)
def test_as_many_compilers_as_cores_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, cores: int, free_bytes: int | None, compilers: int
) -> None:
    monkeypatch.setattr(compiler, "count_cores", lambda: cores)
    monkeypatch.setattr(compiler, "free_bytes", lambda: free_bytes)
    assert compiler._compilers() == compilers


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({"CXX": "", "PATH": ""}, r"^no C\+\+ compiler; install g\+\+ or clang\+\+ for speed$"),
        (
            {"CXX": "no-such-compiler"},
            r"^no-such-compiler: not found; install g\+\+ or clang\+\+, or fix or unset CXX$",
        ),
        ({"CXX": "false"}, r"^false failed on the kernel: exit code 1; see .*; fix or unset CXX$"),
        ({"CHARLM_CACHE": "FILE"}, r"/kernels: the cache cannot be written: .*; name one in CHARLM_CACHE$"),
    ],
)
def test_why_nothing_can_be_compiled(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], error: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("FILE", str(kernel.source)))
    with pytest.raises(KernelError, match=error):
        loading.load(kernel)
    assert not kernel.works()


def test_structs_have_the_layout_that_the_compiler_gives_them(tmp_path: Path) -> None:
    for kernel in (*SHARED_KERNELS, kernel_of(RHN())):
        lines = [f'#include "{kernel.source}"', kernel.text]
        for struct in kernel.structs:
            filled = type(struct.fill())
            offsets = {name: getattr(filled, name).offset for name, _ in filled._fields_}
            lines += [f"static_assert(offsetof({struct.name}, {name}) == {at});" for name, at in offsets.items()]
            lines.append(f"static_assert(sizeof({struct.name}) == {ctypes.sizeof(filled)});")
        file = tmp_path / "layout.cpp"
        file.write_text("\n".join(lines))
        command = [*compiler.find_compiler(), "-std=c++20", "-march=native", "-fsyntax-only", str(file)]
        subprocess.run(command, check=True)


def test_a_fault_of_compilation_is_shown_and_leaves_other_kernels(kernel: Kernel, tmp_path: Path, cache: Path) -> None:
    faulty = Kernel(tmp_path / "faulty.cpp")
    faulty.source.write_text(SOURCE + "int fault() { return nothing; }\n")
    with pytest.raises(KernelError, match=r"failed on the kernel: .*error.*nothing.*; see ") as caught:
        loading.load(faulty, kernel)
    log = Path(str(caught.value).split("; see ")[1].split("; ")[0])
    assert "nothing" in log.read_text()
    assert "faulty.cpp" in log.read_text().splitlines()[0]
    assert compiled(cache) == ["adding.so", "faulty.log"]
    assert (kernel.works(), faulty.works()) == (True, False)


@pytest.mark.parametrize(
    ("allowed", "is_shipped", "outcome"),
    [
        ("", True, []),
        ("", False, COMPILES),
        ("shipped", True, []),
        ("shipped", False, "no kernel for it comes with charlm for this CPU"),
        ("compile", True, COMPILES),
        ("none", True, "switched off by CHARLM_KERNELS"),
        ("both", True, "CHARLM_KERNELS: found both; allowed: shipped, compile, none"),
    ],
)
def test_which_kernels_are_used(
    kernel: Kernel,
    ship: Any,
    lines: Any,
    monkeypatch: pytest.MonkeyPatch,
    allowed: str,
    is_shipped: bool,
    outcome: Any,
) -> None:
    ship(["x86-64-v9"] if is_shipped else [])
    monkeypatch.setenv("CHARLM_KERNELS", allowed)
    if isinstance(outcome, list):
        assert lines(kernel) == outcome
        assert add_up(kernel, 1, 2, 4) == 3.5
    else:
        with pytest.raises(KernelError) as caught:
            lines(kernel)
        assert str(caught.value) == outcome


@pytest.mark.parametrize(
    ("preferred", "outcome", "used"),
    [
        ("", [], "x86-64-v9"),
        ("x86-64-v8", [], "x86-64-v8"),
        ("x86-64-v7", [], "x86-64-v9"),
        ("compiled", COMPILES, "compiled"),
    ],
)
def test_the_kernels_that_a_run_had_are_preferred(
    kernel: Kernel,
    ship: Any,
    lines: Any,
    preferred: str,
    outcome: list[str],
    used: str,
) -> None:
    ship(["x86-64-v9", "x86-64-v8"])
    with loading.preferring(preferred):
        assert lines(kernel) == outcome
        assert loading.used_kernels() == used
        if not outcome:
            assert Path(loading.load(kernel)[0]._name).parent.name == used
    with loading.preferring("x86-64-v9"):
        assert Path(loading.load(kernel)[0]._name).parent.name == "x86-64-v9"


def test_after_a_run_with_other_kernels_the_fastest_are_used_again(kernel: Kernel, ship: Any) -> None:
    ship(["x86-64-v9", "x86-64-v8"])
    loading.load(kernel)
    with loading.preferring("x86-64-v8"):
        loading.load(kernel)
    assert Path(loading.load(kernel)[0]._name).parent.name == "x86-64-v9"


def test_another_thread_may_load_kernels_while_a_run_changes_them(
    kernel: Kernel, ship: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(["x86-64-v9", "x86-64-v8"])
    get = loading._get

    def interrupted(libraries: list[Any]) -> Any:
        ends = threading.Thread(target=lambda: loading._prefer("", forget=True), daemon=True)
        ends.start()
        ends.join(0.05)
        return get(libraries)

    monkeypatch.setattr(loading, "_get", interrupted)
    loading.load(kernel)


def test_threads_that_the_system_refuses_to_load_count_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "SHIPPED", tmp_path)
    loading.shipped_path(tmp_path, loading.THREADS).touch()
    assert loading.cpu_levels.__wrapped__() == []


def test_without_a_compiler_what_comes_with_charlm_replaces_what_was_compiled(
    kernel: Kernel, ship: Any, lines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(["x86-64-v9"])
    monkeypatch.setenv("PATH", "")
    with loading.preferring("compiled"):
        assert lines(kernel) == []
        assert loading.used_kernels() == "x86-64-v9"


def test_a_layer_without_its_kernel_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    stack = RecurrentLayers(RHN(hidden=4), 3)
    assert stack.select_backend("cpu").description.startswith(
        "rhn: reference loop; no fused CPU kernel: false failed on the kernel: "
    )
    assert stack(torch.zeros(2, 1, 3))[0].shape == (2, 1, 4)
    assert not stack.select_backend("cpu").backend.generates


def test_arguments_are_those_of_the_struct_in_the_text(kernel: Kernel) -> None:
    struct = kernel.structs[0].fill(n=5)
    assert [name for name, _ in struct._fields_] == ["n", "threads", "a", "factor", "sum"]
    assert (struct.n, struct.threads, struct.a) == (5, 1, None)
    with pytest.raises(AssertionError, match="b"):
        kernel("add_up", n=1, b=torch.zeros(1))
    for tensor in (torch.zeros(2, 2).t()[:1], torch.zeros(2, dtype=torch.float16), torch.zeros(2, device="meta")):
        with pytest.raises(ValueError, match=r"^a: found a .*; allowed: a contiguous one of torch"):
            kernel("add_up", n=2, a=tensor)
