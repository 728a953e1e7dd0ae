"""Compilation of kernels: the cache, and what is said where it fails."""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

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


def compiled(cache: Path) -> list[str]:
    """Names of what is in the cache, without digests; libraries have a checksum beside them."""
    return sorted(path.name.split("-")[0] + path.suffix for path in (cache / "kernels").iterdir())


def test_threads_that_need_a_kernel_at_once_compile_it_once(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    made, make, both = [], build._make, Barrier(2)
    monkeypatch.setattr(build, "_make", lambda missing: made.append(missing) or make(missing))

    def use(_: int) -> bool:
        both.wait(10)
        return kernel.works()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(use, range(2))) == [True, True]
    assert made == [[kernel]]


def test_only_the_first_use_compiles_and_says_so(
    kernel: Kernel, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    total = torch.zeros(1)
    kernel("add_up", n=3, a=torch.tensor([1.0, 2.0, 4.0]), factor=0.5, sum=total)
    assert total.item() == 3.5
    told = capsys.readouterr().err.splitlines()
    assert [line.split(" in ")[0] for line in told] == ["compile  for this CPU, once: adding ...", "compile  done"]
    build._outcomes.clear()
    kernel.check()
    assert capsys.readouterr().err == ""
    assert compiled(cache) == ["adding.sha256", "adding.so"]


def test_another_text_or_compiler_is_another_library(
    kernel: Kernel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.check()
    kernel.source.write_text(SOURCE + "// changed\n")
    build._outcomes.clear()
    kernel.check()
    monkeypatch.setenv("CXX", shlex.join([*build.find_compiler(), "-DANY"]))
    build._outcomes.clear()
    kernel.check()
    assert compiled(cache) == ["adding.sha256"] * 3 + ["adding.so"] * 3


@pytest.mark.parametrize("path", ["folder", "library"])
def test_a_library_that_others_could_have_written_is_not_loaded(
    kernel: Kernel, cache: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel.check()
    folder = cache / "kernels"
    (library,) = folder.glob("*.so")
    (folder if path == "folder" else library).chmod(0o777)
    build._outcomes.clear()
    capsys.readouterr()
    kernel.check()
    told = capsys.readouterr().err
    assert "compile  for this CPU, once: adding ..." in told
    if path == "folder":
        assert f"cache    {folder}: not used, because others may write to it (chmod go-w changes that); name " in told
    else:
        assert library.stat().st_mode & 0o022 == 0
    build._outcomes.clear()
    kernel.check()
    assert capsys.readouterr().err == ""


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


def test_libraries_that_are_loaded_one_after_another_are_told_apart(kernel: Kernel, tmp_path: Path) -> None:
    """They may get the same descriptor."""
    other = Kernel(tmp_path / "doubling.cpp")
    other.source.write_text(SOURCE.replace("a->factor;", "a->factor * 2;"))
    sums = []
    for each in (kernel, other):
        total = torch.zeros(1)
        each("add_up", n=1, a=torch.ones(1), factor=0.5, sum=total)
        sums.append(total.item())
    assert sums == [0.5, 1.0]


@pytest.mark.parametrize(
    ("cores", "free_bytes", "compilers"), [(2, None, 2), (8, 10**11, 8), (8, 10**9, 2), (2, 10**6, 1)]
)
def test_as_many_compilers_as_cores_and_memory_allow(
    monkeypatch: pytest.MonkeyPatch, cores: int, free_bytes: int | None, compilers: int
) -> None:
    monkeypatch.setattr(build, "usable_cores", lambda: range(cores))
    monkeypatch.setattr(build, "free_bytes", lambda: free_bytes)
    assert build._compilers() == compilers


def test_a_library_with_another_layout_is_not_called(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Struct, "layout", property(lambda struct: [48, 0, 8, 24, 16, 32]))
    with pytest.raises(KernelError, match=r"^the compiler lays out struct Arguments of adding.cpp in another way$"):
        kernel.check()


@pytest.mark.parametrize(
    ("compiler", "error"),
    [
        ("", r"^no C\+\+ compiler; install g\+\+ or clang\+\+ for speed$"),
        ("no-such-compiler", r"^the kernel could not be built: .*no-such-compiler"),
        ("false", r"^false failed on the kernel: exit code 1; see .*; fix or unset CXX$"),
    ],
)
def test_a_compiler_that_is_none(kernel: Kernel, monkeypatch: pytest.MonkeyPatch, compiler: str, error: str) -> None:
    monkeypatch.setenv("CXX", compiler)
    if not compiler:
        monkeypatch.delenv("CXX")
        monkeypatch.setenv("PATH", "")
    with pytest.raises(KernelError, match=error):
        kernel.check()
    assert not kernel.works()


def test_a_fault_of_compilation_is_shown_and_leaves_other_kernels(kernel: Kernel, tmp_path: Path, cache: Path) -> None:
    faulty = Kernel(tmp_path / "faulty.cpp")
    faulty.source.write_text(SOURCE + "int fault() { return nothing; }\n")
    with pytest.raises(KernelError, match=r"failed on the kernel: .*error.*nothing.*; see ") as caught:
        build.load(faulty, kernel)
    log = Path(str(caught.value).split("; see ")[1].split("; ")[0])
    assert "nothing" in log.read_text()
    assert "faulty.cpp" in log.read_text().splitlines()[0]
    assert compiled(cache) == ["adding.sha256", "adding.so", "faulty.log"]
    assert kernel.works()
    assert not faulty.works()


def test_a_damaged_library_is_made_again(kernel: Kernel, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kernel.check()
    for suffix, damage in ((".so", "cut"), (".so", "missing"), (".sha256", "changed"), (".sha256", "missing")):
        (path,) = (path for path in (cache / "kernels").iterdir() if path.suffix == suffix)
        data = path.read_bytes()
        path.unlink()  # This process has it mapped.
        if damage != "missing":
            path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"x" + data[1:])
        for lines in (2, 0):
            build._outcomes.clear()
            capsys.readouterr()
            kernel.check()
            assert capsys.readouterr().err.count("\n") == lines, (suffix, damage)


def test_a_cache_that_cannot_be_written(kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CHARLM_CACHE", str(tmp_path / "file"))
    with pytest.raises(KernelError, match=r"^.*file/kernels: .* stored there .*; set CHARLM_CACHE to another folder$"):
        kernel.check()


def test_leftovers_of_a_killed_compilation_go_and_nothing_else(kernel: Kernel, cache: Path) -> None:
    old, new, linked, other = (
        cache / "kernels" / name for name in (".a.charlm.tmp", ".b.charlm.tmp", ".c.charlm.tmp", "tmpmine")
    )
    other.mkdir(parents=True)
    for file in (old, new, other / ".a.charlm.tmp"):
        file.touch()
    linked.symlink_to(other)
    for path in (old, linked, other):
        os.utime(path, (0, 0), follow_symlinks=False)
    kernel.check()
    assert [path.exists() for path in (old, new, linked / ".a.charlm.tmp", other)] == [False, True, True, True]


@pytest.mark.slow
def test_processes_that_compile_at_once(kernel: Kernel, cache: Path) -> None:
    code = "import pathlib, sys; from charlm.native.call import Kernel; Kernel(pathlib.Path(sys.argv[1])).check()"
    command = [sys.executable, "-c", code, str(kernel.source)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert compiled(cache) == ["adding.sha256", "adding.so"]


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
