"""Compilation of kernels: the cache, and what is said where it fails; what wheels bring."""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from charlm.cells import CELLS, LSTM, RHN
from charlm.cells.state_options import ALL
from charlm.config import load_config, shipped_configs
from charlm.layers import RecurrentLayers
from charlm.native import compiler, loading
from charlm.native.compiler import Kernel, KernelError
from charlm.native.kernels import SHARED_KERNELS, kernel_of
from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no C++ compiler")

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


@pytest.fixture(scope="session")
def threads(tmp_path_factory):
    """A cache that holds the library of threads alone, which all others need."""
    folder = tmp_path_factory.mktemp("threads")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CHARLM_CACHE", str(folder))
        compiler.compiled([loading.THREADS])
    return folder / "kernels"


@pytest.fixture(autouse=True)
def new_process(threads, cache, monkeypatch):
    """No library is loaded, and none comes with charlm; the cache holds that of threads."""
    shutil.copytree(threads, cache / "kernels")
    monkeypatch.setattr(loading, "SHIPPED", Path("nowhere"))
    monkeypatch.setattr(loading, "_outcomes", {})


@pytest.fixture
def kernel(tmp_path):
    path = tmp_path / "adding.cpp"
    path.write_text(SOURCE)
    return Kernel(path)


@pytest.fixture
def compiles(capsys, monkeypatch):
    """Whether a new process that uses the kernel says that it compiles it, and then that it is done."""

    def compiles(kernel):
        monkeypatch.setattr(loading, "_outcomes", {})
        capsys.readouterr()
        loading.load(kernel)
        lines = [line.split(" in ")[0] for line in capsys.readouterr().err.splitlines()]
        assert lines in ([], ["compile  for this CPU and these options, once: adding ...", "compile  done"])
        return bool(lines)

    return compiles


@pytest.fixture
def ship(kernel, threads, cache, monkeypatch):
    """Makes the kernel come with charlm for levels of CPU, all of which this one has."""

    def ship(*levels):
        loading.load(kernel)
        [library] = cache.glob("kernels/adding-*.so")
        [of_threads] = threads.glob("*.so")
        shipped = cache / "shipped"
        for level in levels:
            (shipped / level).mkdir(parents=True)
            shutil.copy(library, loading.shipped_path(shipped / level, kernel))
            shutil.copy(of_threads, loading.shipped_path(shipped, loading.THREADS))
        library.unlink()
        monkeypatch.setattr(loading, "_outcomes", {})
        monkeypatch.setattr(loading, "SHIPPED", shipped)
        monkeypatch.setattr(loading, "cpu_levels", lambda: [*levels])

    return ship


def add_up(kernel: Kernel, *numbers: float) -> float:
    total = torch.zeros(1)
    loading.call(kernel, "add_up", n=len(numbers), a=torch.tensor(numbers).float(), factor=0.5, sum=total)
    return total.item()


@pytest.mark.usefixtures("windows")
def test_a_kernel_is_compiled_once_for_a_source_and_a_compiler(kernel, tmp_path, cache, compiles, monkeypatch):
    assert compiles(kernel)
    assert add_up(kernel, 1, 2, 4) == 3.5
    assert not compiles(kernel)
    kernel.source.write_text(SOURCE.replace("a->factor;", "a->factor * 2;"))
    assert compiles(kernel)
    assert add_up(kernel, 1, 2, 4) == 7
    script = tmp_path / "compiler"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(compiler.find_compiler())} $VERSION "$@"')
    script.chmod(0o700)
    monkeypatch.setenv("CXX", str(script))
    for version in ("-DONE", "-DOTHER"):
        monkeypatch.setenv("VERSION", version)
        assert add_up(Kernel(kernel.source), 1) == 1
    assert len([*cache.glob("kernels/adding-*.so")]) == 4


@pytest.mark.parametrize(("suffix", "damage"), [("so", "changed"), ("so", "writable by others"), ("sha256", "changed")])
def test_a_library_that_is_damaged_or_not_ones_own_is_made_again(kernel, cache, suffix, damage, compiles):
    loading.load(kernel)
    [path] = (cache / "kernels").glob(f"adding*.{suffix}")
    data = path.read_bytes()
    path.unlink()  # This process has it mapped.
    path.write_bytes(b"x" + data[1:] if damage == "changed" else data)
    path.chmod(0o777 if damage == "writable by others" else 0o600)
    assert compiles(kernel)
    assert not compiles(kernel)


def test_a_layer_without_its_kernel_runs_in_pytorch_and_says_why(monkeypatch):
    takes_minutes = RecurrentLayers(RHN(hidden=4, depth=90), 3)
    assert "no fused CPU kernel: its step is " in takes_minutes.select_backend("cpu").description
    monkeypatch.setenv("CXX", "false")
    stack = RecurrentLayers(RHN(hidden=4), 3)
    assert stack.select_backend("cpu").description.startswith(
        "rhn: reference loop; no fused CPU kernel: false failed on the kernel: "
    )
    assert stack(torch.zeros(2, 1, 3))[0].shape == (2, 1, 4)


@pytest.mark.parametrize(
    ("variable", "value", "error"),
    [
        ("PATH", "", r"no C\+\+ compiler; install g\+\+ or clang\+\+ for speed"),
        ("CHARLM_CACHE", __file__, "the cache cannot be written: "),
    ],
)
def test_why_nothing_can_be_compiled(kernel, monkeypatch, variable, value, error):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(KernelError, match=error):
        loading.load(kernel)
    assert not loading.works(kernel)


NOEXEC = mock.Mock(return_value=mock.Mock(f_flag=os.ST_NOEXEC))
REFUSED = mock.Mock(side_effect=OSError("not permitted"))


@pytest.mark.parametrize(
    ("module", "function", "answer", "error", "compilations"),
    [
        (os, "statvfs", NOEXEC, "a disk mounted noexec", [0, 0]),
        (ctypes, "CDLL", REFUSED, r"cannot be loaded \(not permitted\)", [1, 0]),
    ],
)
def test_where_no_library_can_be_loaded_a_start_compiles_nothing_again(
    kernel, monkeypatch, capsys, module, function, answer, error, compilations
):
    monkeypatch.setattr(module, function, answer)
    for count in compilations:
        monkeypatch.setattr(loading, "_outcomes", {})
        with pytest.raises(KernelError, match=f"{error}.* in CHARLM_CACHE"):
            loading.load(kernel)
        assert capsys.readouterr().err.count("compile ") == count


def test_a_fault_of_compilation_is_shown_and_leaves_other_kernels(kernel, tmp_path):
    faulty = Kernel(tmp_path / "faulty.cpp")
    faulty.source.write_text(SOURCE + "int fault() { return nothing; }\n")
    with pytest.raises(KernelError) as caught:
        loading.load(faulty, kernel)
    shown, log = str(caught.value).split("; see ")
    assert "nothing" in shown
    assert "faulty.cpp" in Path(log).read_text().splitlines()[0]
    assert (loading.works(kernel), loading.works(faulty)) == (True, False)


@pytest.mark.parametrize(
    ("allowed", "levels", "outcome"),
    [
        ("", ["x86-64-v9"], "came with charlm"),
        ("shipped", ["x86-64-v9"], "came with charlm"),
        ("shipped", [], "no kernel for it comes with charlm for this CPU"),
        ("compile", ["x86-64-v9"], "compiled"),
        ("none", ["x86-64-v9"], "switched off by CHARLM_KERNELS"),
        ("both", ["x86-64-v9"], "CHARLM_KERNELS: found both; allowed: shipped, compile, none"),
    ],
)
def test_which_kernels_are_used(kernel, ship, compiles, monkeypatch, allowed, levels, outcome):
    ship(*levels)
    monkeypatch.setenv("CHARLM_KERNELS", allowed)
    try:
        found = "compiled" if compiles(kernel) else "came with charlm"
    except KernelError as error:
        found = str(error)
    assert found == outcome


@pytest.mark.parametrize(
    ("preferred", "used"),
    [
        ("", "x86-64-v9"),
        ("x86-64-v8", "x86-64-v8"),
        ("compiled", "compiled"),
        ("compiled, without a compiler", "x86-64-v9"),
    ],
)
def test_the_kernels_that_a_run_had_are_preferred_until_it_ends(kernel, ship, monkeypatch, preferred, used):
    ship("x86-64-v9", "x86-64-v8")
    loading.load(kernel)
    if preferred.endswith("without a compiler"):
        monkeypatch.setenv("PATH", "")
    with loading.preferring(preferred.partition(",")[0]):
        loading.load(kernel)
        assert loading.used_kernels() == used
    loading.load(kernel)
    assert loading.used_kernels() == "x86-64-v9"


def test_arguments_are_those_of_the_struct_in_the_text(kernel):
    struct = kernel.structs[0].fill(n=5)
    assert [name for name, _ in struct._fields_] == ["n", "threads", "a", "factor", "sum"]
    assert (struct.n, struct.threads, struct.a) == (5, 1, None)
    for tensor in (torch.zeros(2, 2).t()[:1], torch.zeros(2, dtype=torch.float16), torch.zeros(2, device="meta")):
        with pytest.raises(ValueError, match="a: found"):
            loading.call(kernel, "add_up", n=2, a=tensor, sum=torch.zeros(1))


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # cannot be imported
sys.path[:0] = [".", "scripts"]
import hatch_build
print(*[f"{kernel.name}-{kernel.digest}" for kernel in hatch_build.shipped_kernels()])
"""


def test_usual_cells_need_no_compiler_and_wheels_no_torch():
    """The shipped configs', and other sizes, initial values and depths."""
    pytest.importorskip("hatchling", reason="scripts/test-oldest installs no build backend")
    cells = [load_config(path).model.cell for path in shipped_configs().values()]
    cells += [kind(hidden=17) for kind in CELLS.values()]
    cells += [LSTM(hidden=40, layer_norm=True, forget_bias=2), RHN(depth=4, gate_bias=-3)]
    command = [sys.executable, "-c", WITHOUT_TORCH]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout
    shipped = set(printed.split())
    needed = [*SHARED_KERNELS, *map(kernel_of, cells), *(kernel_of(kind(), ALL) for kind in CELLS.values())]
    assert {f"{kernel.name}-{kernel.digest}" for kernel in needed} <= shipped
    assert len(shipped) < 60  # they fit into a wheel of 8 MB
