"""Products by AMX's tiles, whose instructions are computed in software here: most CPUs have none."""

import platform
import shlex
from pathlib import Path

import pytest
import torch

from charlm.native import compiler, loading
from charlm.native.precision import choose_precision
from tests.cells.measure import Case, error, random_input, random_state, run
from tests.native.test_products import SIZES, TRANSPOSED, assert_bf16_product

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("needs_kernels"),
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="no x86-64"),
]


@pytest.fixture(autouse=True)
def tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that use tiles."""
    command = compiler.find_compiler()
    # GCC 12 miscompiles clones of functions with vector arguments wider than the registers.
    flags = [] if "clang" in command[0] else ["-fno-ipa-cp-clone"]
    header = Path(__file__).with_name("software_tiles.h")
    monkeypatch.setenv("CXX", shlex.join([*command, "-include", str(header), *flags]))
    monkeypatch.setenv("CHARLM_KERNELS", "compile")
    monkeypatch.setattr(loading, "_outcomes", {})


def test_precision() -> None:
    assert choose_precision("auto", torch.device("cpu")) == ("bf16", "faster on this CPU (AMX)")


def test_products() -> None:
    for M, N, K in SIZES:
        for transposed in TRANSPOSED:
            assert_bf16_product(M, N, K, transposed)


# B: less than one tile, one, more than one, two, more than two; H not a multiple of the 32 elements in a row.
@pytest.mark.parametrize("batch_size", [1, 16, 17, 32, 40])
def test_recurrence(batch_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Case("lstm").build(5, 70).float()
    x, state = random_input(stack, 4, batch_size).float(), random_state(stack, batch_size)
    with torch.autocast("cpu", torch.bfloat16):
        found = run(stack, stack, x, state)
        monkeypatch.undo()
        expected = run(stack, stack, x, state)
    # Another order of sums; a sum that is rounded to the other of two numbers in bfloat16 adds its difference.
    for name, tensor in expected.items():
        assert error(found[name], tensor) <= 0.01 * float(tensor.abs().max()), name
