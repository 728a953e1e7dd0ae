"""Compilation of kernels: the cache, and what is said where it fails."""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from charlm.cells import RHN
from charlm.layers import RecurrentLayers
from charlm.native import build
from charlm.native.build import KernelError
from charlm.native.call import Kernel
from charlm.native.structs import Struct

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
    """Libraries loaded by other tests are not known here, nor these there."""
    monkeypatch.setattr(build, "_outcomes", {})


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    path = tmp_path / "adding.cpp"
    path.write_text(SOURCE)
    return Kernel(path)


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Callable[[Kernel], list[str]]:
    """What is said when a process uses the kernel for the first time."""

    def said(kernel: Kernel) -> list[str]:
        build._outcomes.clear()
        capsys.readouterr()
        kernel.check()
        return [line.split(" in ")[0] for line in capsys.readouterr().err.splitlines()]

    return said


COMPILES = ["compile  for this CPU, once: adding ...", "compile  done"]


def compiled(cache: Path) -> list[str]:
    """Names of what is in the cache, without digests; libraries have a checksum beside them."""
    return sorted(path.name.split("-")[0] + path.suffix for path in (cache / "kernels").iterdir())


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
    assert compiled(cache) == ["adding.sha256", "adding.so"]
    kernel.source.write_text(SOURCE + "// changed\n")
    assert lines(kernel) == COMPILES
    monkeypatch.setenv("CXX", shlex.join([*build.find_compiler(), "-DANY"]))
    assert lines(kernel) == COMPILES
    assert compiled(cache) == ["adding.sha256"] * 3 + ["adding.so"] * 3
    # Libraries that are loaded one after another may get the same descriptor.
    other = Kernel(kernel.source.with_name("doubling.cpp"))
    other.source.write_text(SOURCE.replace("a->factor;", "a->factor * 2;"))
    assert (add_up(kernel, 1), add_up(other, 1)) == (0.5, 1.0)


@pytest.mark.parametrize("damage", ["cut", "missing", "changed", "writable by others"])
@pytest.mark.parametrize("suffix", [".so", ".sha256"])
def test_a_library_that_is_damaged_or_not_ones_own_is_made_again(
    kernel: Kernel, cache: Path, suffix: str, damage: str, lines: Any
) -> None:
    kernel.check()
    (path,) = (path for path in (cache / "kernels").iterdir() if path.suffix == suffix)
    data = path.read_bytes()
    path.unlink()  # This process has it mapped.
    if damage != "missing":
        path.write_bytes({"cut": data[: len(data) // 2], "changed": b"x" + data[1:]}.get(damage, data))
        path.chmod(0o777 if damage == "writable by others" else 0o600)
    assert lines(kernel) == COMPILES
    assert path.stat().st_mode & 0o022 == 0
    assert lines(kernel) == []


def test_a_folder_that_others_can_write_to_is_not_used(kernel: Kernel, cache: Path, lines: Any) -> None:
    kernel.check()
    folder = cache / "kernels"
    folder.chmod(0o777)
    first, *others = lines(kernel)
    assert first.startswith(f"cache    {folder}: not used, because others may write to it (chmod go-w changes that); ")
    assert others == COMPILES


@pytest.mark.parametrize("descriptors", ["/proc/self/fd", "/nowhere"])
def test_the_library_that_was_checked_is_loaded_whatever_has_its_name_by_then(
    kernel: Kernel, cache: Path, monkeypatch: pytest.MonkeyPatch, descriptors: str
) -> None:
    kernel.check()
    (library,) = (cache / "kernels").glob("*.so")
    load = ctypes.CDLL

    def swapped(name: str | None) -> ctypes.CDLL:
        if name is not None:
            library.unlink()
            library.write_text("planted")
        return load(name)

    monkeypatch.setattr(build, "_DESCRIPTORS", Path(descriptors))
    monkeypatch.setattr(ctypes, "CDLL", swapped)
    build._outcomes.clear()
    kernel.check()
    assert library.read_text() == "planted"


def test_threads_that_need_a_kernel_at_once_compile_it_once(kernel: Kernel, capfd: pytest.CaptureFixture[str]) -> None:
    both = Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: both.wait(10) is not None and kernel.works(), range(2))) == [True, True]
    assert capfd.readouterr().err.count("compile  for this CPU") == 1


@pytest.mark.slow
def test_processes_that_compile_at_once(kernel: Kernel, cache: Path) -> None:
    code = "import pathlib, sys; from charlm.native.call import Kernel; Kernel(pathlib.Path(sys.argv[1])).check()"
    command = [sys.executable, "-c", code, str(kernel.source)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert compiled(cache) == ["adding.sha256", "adding.so"]


@pytest.mark.parametrize(
    ("cores", "free_bytes", "compilers"), [(2, None, 2), (8, 10**11, 8), (8, 10**9, 2), (2, 10**6, 1)]
)
def test_as_many_compilers_as_cores_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, cores: int, free_bytes: int | None, compilers: int
) -> None:
    monkeypatch.setattr(build, "usable_cores", lambda: range(cores))
    monkeypatch.setattr(build, "free_bytes", lambda: free_bytes)
    assert build._compilers() == compilers


@pytest.mark.parametrize(
    ("variables", "error"),
    [
        ({"CXX": "", "PATH": ""}, r"^no C\+\+ compiler; install g\+\+ or clang\+\+ for speed$"),
        ({"CXX": "no-such-compiler"}, r"^the kernel could not be built: .*no-such-compiler"),
        ({"CXX": "false"}, r"^false failed on the kernel: exit code 1; see .*; fix or unset CXX$"),
        ({"CHARLM_CACHE": "FILE"}, r"/kernels: .* stored there .*; set CHARLM_CACHE to another folder$"),
    ],
)
def test_why_nothing_can_be_compiled(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], error: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value.replace("FILE", str(kernel.source)))
    with pytest.raises(KernelError, match=error):
        kernel.check()
    assert not kernel.works()


def test_a_library_with_another_layout_is_not_called(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Struct, "layout", property(lambda struct: [48, 0, 8, 24, 16, 32]))
    with pytest.raises(KernelError, match=r"^the compiler lays out struct Arguments of adding.cpp in another way$"):
        kernel.check()


def test_a_fault_of_compilation_is_shown_and_leaves_other_kernels(kernel: Kernel, tmp_path: Path, cache: Path) -> None:
    faulty = Kernel(tmp_path / "faulty.cpp")
    faulty.source.write_text(SOURCE + "int fault() { return nothing; }\n")
    with pytest.raises(KernelError, match=r"failed on the kernel: .*error.*nothing.*; see ") as caught:
        build.load(faulty, kernel)
    log = Path(str(caught.value).split("; see ")[1].split("; ")[0])
    assert "nothing" in log.read_text()
    assert "faulty.cpp" in log.read_text().splitlines()[0]
    assert compiled(cache) == ["adding.sha256", "adding.so", "faulty.log"]
    assert (kernel.works(), faulty.works()) == (True, False)


def test_leftovers_of_a_killed_compilation_go(kernel: Kernel, cache: Path) -> None:
    old, new = (cache / "kernels" / name for name in (".a.charlm.tmp", ".b.charlm.tmp"))
    old.parent.mkdir(parents=True)
    for file in (old, new):
        file.touch()
    os.utime(old, (0, 0))
    kernel.check()
    assert [path.exists() for path in (old, new)] == [False, True]


def test_a_layer_without_its_kernel_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    stack = RecurrentLayers(RHN(hidden=4), 3)
    assert stack.select_backend("cpu").description.startswith(
        "rhn: reference loop; no fused CPU kernel: false failed on the kernel: "
    )
    assert stack(torch.zeros(2, 1, 3))[0].shape == (2, 1, 4)
    assert stack.generator(stack.zero_state(1), None, (torch.zeros(3, 4), torch.zeros(3))) is None


def test_arguments_are_those_of_the_struct_in_the_text(kernel: Kernel) -> None:
    struct = kernel.structs[0].fill(n=5)
    assert [name for name, _ in struct._fields_] == ["n", "threads", "a", "factor", "sum"]
    assert (struct.n, struct.threads, struct.a) == (5, 1, None)
    with pytest.raises(AssertionError, match="b"):
        kernel("add_up", n=1, b=torch.zeros(1))
    for tensor in (torch.zeros(2, 2).t()[:1], torch.zeros(2, dtype=torch.float16), torch.zeros(2, device="meta")):
        with pytest.raises(AssertionError):
            kernel("add_up", n=2, a=tensor)
