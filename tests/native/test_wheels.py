"""What wheels bring: kernels of the usual cells."""

import importlib.util
from collections.abc import Iterator

import pytest

from charlm.cells import CELLS, RHN, Cell
from charlm.config import load_config
from charlm.config.shipped import shipped_configs
from charlm.native.fused import fused
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


def test_usual_cells_need_no_compiler(hook):
    shipped = {fused(cell) for cell in hook.shipped_cells()}
    assert [cell for cell in usual_cells() if fused(cell) not in shipped] == []
    assert len(shipped) < 40  # a wheel of 8 MB holds about 60


def test_a_platform_that_no_wheel_is_for(hook, monkeypatch):
    monkeypatch.setenv("CHARLM_WHEEL", "mars-x86_64")
    build = object.__new__(hook.Kernels)
    allowed = "linux-x86_64, linux-aarch64, macos-arm64, windows-x86_64"
    with pytest.raises(SystemExit, match=f"^CHARLM_WHEEL: found mars-x86_64; allowed: {allowed}$"):
        build.initialize("standard", {})
