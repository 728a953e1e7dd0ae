"""What wheels bring: kernels of the usual cells."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from charlm.cells import CELLS, RHN, Cell
from charlm.config import load_config
from charlm.config.shipped import shipped_configs
from charlm.native.kernels import SHARED_KERNELS, kernel_of
from tests.conftest import ROOT

pytest.importorskip("hatchling", reason="scripts/test-oldest installs no build backend")


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "scripts/hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def usual_cells() -> Iterator[Cell]:
    """The shipped configs', and other sizes, initial values and depths."""
    for path in shipped_configs().values():
        yield load_config(path).model.cell
    for kind in CELLS.values():
        yield kind(hidden=17)
    yield CELLS["lstm"](hidden=40, layer_norm=True, forget_bias=2)
    for depth in (1, 4, 10):
        yield RHN(depth=depth, gate_bias=-3)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # cannot be imported
sys.path[:0] = [".", "scripts"]
import hatch_build
print(*[f"{kernel.name}-{kernel.digest}" for kernel in hatch_build.shipped_kernels()])
"""


def test_usual_cells_need_no_compiler_and_wheels_no_torch():
    command = [sys.executable, "-c", WITHOUT_TORCH]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, encoding="utf-8").stdout
    shipped = set(printed.split())
    needed = [*SHARED_KERNELS, *map(kernel_of, usual_cells())]
    assert {f"{kernel.name}-{kernel.digest}" for kernel in needed} <= shipped
    assert len(shipped) < 45  # a wheel of 8 MB holds about 60


def test_only_what_changed_is_compiled(hook, monkeypatch, tmp_path):
    compiled: list[str] = []

    def zig(command: list[str]) -> None:
        Path(command[-1]).write_bytes(b"a library")
        compiled.append(Path(command[-1]).name)

    def build(depth: int) -> int:
        """How many libraries the wheel has."""
        compiled.clear()
        monkeypatch.setattr(hook, "shipped_cells", lambda: [RHN(depth=depth)])
        hook.Kernels(str(tmp_path), {}, None, None, "", "wheel").initialize("standard", {"force_include": {}})
        return len(list(tmp_path.glob("build/kernels/linux-x86_64/**/*.so")))

    monkeypatch.setattr(hook, "_zig", zig)
    monkeypatch.setattr(hook, "version_of", lambda package: "1")
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("CHARLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CHARLM_WHEEL", "linux-x86_64")
    libraries = build(depth=3)
    assert 1 < libraries <= len(compiled)
    assert build(depth=3) == libraries
    assert not compiled
    assert build(depth=2) == libraries
    assert {name.split("-")[0] for name in compiled} == {"rhn"}
    monkeypatch.setenv("CHARLM_WHEEL", "mars-x86_64")
    with pytest.raises(SystemExit, match="CHARLM_WHEEL: found mars-x86_64; allowed: linux-x86_64, "):
        build(depth=2)
