"""Triton's kernels of a step: in its interpreter on the CPU, and compiled for three generations of GPUs."""

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.cells import Cell
from charlm.gpu.recurrence import TensorRecurrence
from tests.cells.measure import CASES, Case, hold_to_the_rule, own, steps_by_triton
from tests.cells.programs import cells
from tests.cells.test_bf16 import assert_operands_are_rounded
from tests.conftest import ROOT
from tests.gpu.test_derivative import MASKS, SIZES, plain, random_call, results
from tests.pairwise import pairwise

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, in Triton's interpreter (tests/conftest.py), on the CPU too."""
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device, where the kernels themselves are tested")

    monkeypatch.setattr(TensorRecurrence, "steps", steps_by_triton)


OPTIONS = [{"zoneout": 0.3, "residual": True}, {"state_dropout": 0.4, "weight_dropout": 0.2, "zoneout": 0.3}, {}]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of numbers that the kernels do not store
@pytest.mark.usefixtures("interpreter", "poison")
@pairwise(
    case=CASES, size=[(3, 3, 5, 17, 1), (1, 1, 1, 1, 1), (2, 5, 60, 60, 1)], options=OPTIONS, resets=[True, False]
)
def test_they_err_no_more_than_the_reference(
    case: Case, size: tuple[int, ...], options: dict[str, Any], resets: bool
) -> None:
    steps, batch_size, *sizes = size
    hold_to_the_rule(case.build(*sizes, **options), steps, batch_size, own, resets)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=20, deadline=None)
@given(cells(jumps=False), st.sampled_from(SIZES), st.sampled_from(MASKS))
def test_random_cells(cell: Cell, size: tuple[int, ...], masks: tuple[str, ...]) -> None:
    """Kernels with several stages and sizes of vectors compute what PyTorch's operators do."""
    if torch.cuda.is_available():
        pytest.skip("Triton's interpreter is off where there is a GPU")
    x, call = random_call(cell.model_copy(update={"hidden": size[-1]}), (2, *size[1:]), masks, torch.float32)
    expected = results(plain, x, call)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TensorRecurrence, "steps", steps_by_triton)
        found = results(plain, x, call)
    for name, tensor in expected.items():
        largest = float(tensor.abs().max().clamp(min=1))
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-4 * largest, msg=name)


COMPILE = """\
import subprocess, sys, tempfile, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from charlm.cells import CELLS
from charlm.cells.derivative import passes_of
from charlm.cells.triton import kernels
from charlm.cells.triton_kernel import Options
from charlm.gpu.kernels import AS_WRITTEN, compiled, shape

dump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

def check(function, kernel, architecture, units):
    kinds = {"zoneout_row": "i32", "copy": "*bf16", "d_copy": "*bf16"}
    types = {argument.name: kinds.get(argument.kind, "*fp32") for argument in kernel.arguments}
    types |= {"B": "i32", "N": "i32", "BLOCK": "constexpr", "INDEX": "constexpr"}
    block = shape(kernel, units)
    constants = {"BLOCK": block.pop("BLOCK"), "INDEX": tl.int32}
    source = ASTSource(fn=function, signature=types, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={**block, **AS_WRITTEN})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])
        used = subprocess.run([dump, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    # Registers that do not suffice spill to the stack.
    assert "STACK:0 " in used and "LOCAL:0 " in used, (kernel.name, units, used)
    assert compiled.metadata.shared <= 48 * 1024

for kind, options in eval(sys.argv[1]):
    derived = passes_of(CELLS[kind](hidden=2, **options), False)
    for full in (False, True):
        options = Options(full, full, full, full)
        both, functions = kernels(derived, options), compiled(derived, options)
        for kernel in (kernel for stage in (*both.forward, *both.backward) for kernel in stage.kernels):
            for units in (40, 512, 1500) if kernel.whole_rows else (512,):
                for architecture in (80, 90, 100):
                    check(functions[kernel.name], kernel, architecture, units)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux only")
@pytest.mark.parametrize("half", [0, 1])
def test_they_compile_for_gpus_without_spilling(half: int) -> None:
    command = [sys.executable, "-c", COMPILE, repr([(case.kind, case.options) for case in CASES[half::2]])]
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("interpreter")
def test_in_bf16_they_round_the_operands_of_products_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    from charlm.gpu.kernels import TritonSteps

    # The interpreter cuts off where a GPU rounds to bfloat16; so the product rounds what the kernels write.
    monkeypatch.setattr(TritonSteps, "BF16", torch.float32)
    assert_operands_are_rounded(case, 1, 17, {"zoneout": 0.3}, own, layers=1)
