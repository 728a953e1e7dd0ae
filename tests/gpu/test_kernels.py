"""Triton's kernels: interpreted on the CPU, and compiled for GPUs."""

import importlib.util
import os
import subprocess
import sys
from collections import defaultdict
from typing import Any

import pytest
import torch

from charlm.gpu.product import torch_product
from tests.cells.measure import CASES, Case, error, hold_to_the_rule, layers_of, own, rounded
from tests.cells.programs import drawn
from tests.cells.test_bf16 import assert_operands_are_rounded
from tests.conftest import ROOT

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")
OPTIONS: list[dict[str, Any]] = [{"zoneout": 0.3, "residual": True}, {"state": 0.4, "weights": 0.2, "zoneout": 0.3}, {}]
# T, B, I, H, L, options, and whether streams are reset.
SETUPS = [
    ((3, 3, 5, 17, 1), OPTIONS[0], True),
    ((2, 5, 60, 60, 1), OPTIONS[1], False),
    ((3, 3, 5, 17, 1), OPTIONS[1], True),
    ((1, 1, 1, 1, 1), OPTIONS[2], False),
]


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of numbers that the kernels do not store
@pytest.mark.usefixtures("interpreter", "poison")
@pytest.mark.parametrize(
    ("case", "setup"),
    [
        *((case, SETUPS[number % 2]) for number, case in enumerate(CASES)),
        *((Case(kind), setup) for kind in ("lstm", "rhn") for setup in SETUPS[2:]),
    ],
    ids=str,
)
def test_triton_kernels_err_no_more_than_the_reference(case, setup):
    (steps, batch_size, *sizes), options, resets = setup
    hold_to_the_rule(case.build(*sizes, **options), steps, batch_size, own, resets)


@needs_triton
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("interpreter")
def test_triton_kernels_of_random_cells():
    for number, cell in enumerate(drawn(6, 7)):
        stack = layers_of(cell, (5, 7)[number % 2], **OPTIONS[number % 3])
        with torch.no_grad():
            for parameter in stack.parameters():
                parameter += 0.2 * torch.randn_like(parameter)
        hold_to_the_rule(stack.double(), 2, 3, own, resets=number % 4 < 2)


@needs_triton
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux only")
@pytest.mark.parametrize(
    ("architectures", "compiled"),
    [
        pytest.param("90", ["rnn"], marks=pytest.mark.slow, id="one"),
        pytest.param("90,80,100", [*map(str, CASES)], marks=pytest.mark.rare, id="all"),
    ],
)
def test_they_compile_for_gpus_without_spilling(architectures, compiled):
    command = [sys.executable, "-m", "tests.gpu.compiled", architectures, *compiled]
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("case", [Case("lstm"), Case("rhn"), Case("mogrifier")], ids=str)
def test_in_bf16_they_round_the_operands_of_products_and_nothing_else(monkeypatch, case):
    from charlm.gpu.kernels import TritonSteps

    # The interpreter cuts off where a GPU rounds to bfloat16; so the product rounds what the kernels write.
    monkeypatch.setattr(TritonSteps, "BF16", torch.float32)
    assert_operands_are_rounded(case, 1, 17, {"zoneout": 0.3}, own, layers=1)


@needs_triton
@pytest.mark.parametrize(("streams", "integers"), [(7, {"int32"}), (2**31 // 40 + 1, {"int64"})])
def test_offsets_have_64_bits_where_32_do_not_suffice(monkeypatch, streams, integers):
    found: set[str] = set()

    class Kernel:
        def __getitem__(self, grid):
            return lambda *arguments, INDEX, **options: found.add(INDEX.name)

    monkeypatch.setattr("charlm.gpu.kernels.compiled", lambda passes, options: defaultdict(Kernel))
    stack = Case("rnn").start(40, 40).to("meta")
    own(stack)(torch.empty(1, streams, 40, device="meta"), stack.initial_state(streams))
    assert found == integers


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_sums_of_bf16_operands_are_not_rounded():
    a, b = torch.randn(17, 300, device="cuda"), torch.randn(300, 40, device="cuda")
    truth, exact = rounded(a).double() @ rounded(b).double(), a.double() @ b.double()
    for one, other in ((a, b), (a.t().contiguous().t(), b.t().contiguous().t())):
        for out in (None, torch.empty(17, 40, device="cuda")):
            found = torch_product(one, other, bf16=True, out=out)
            assert found.dtype == torch.float32
            assert out is None or found is out
            assert error(found, truth) < 1e-3 < error(found, exact)
