"""Triton's kernels of a step: in its interpreter on the CPU, and compiled for three generations of GPUs."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.cells import Cell
from charlm.gpu.recurrence import TensorRecurrence
from tests.cells.measure import (
    CASES,
    Case,
    Run,
    assert_as_accurate,
    in_dtype_of,
    own,
    random_input,
    random_state,
    run,
    steps_by_triton,
)
from tests.cells.programs import cells
from tests.cells.test_bf16 import assert_operands_are_rounded
from tests.conftest import ROOT
from tests.gpu.test_derivative import MASKS, SIZES, plain, random_call, results
from tests.gpu.test_recurrence import OPTIONS, seeded
from tests.pairwise import pairwise

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, in Triton's interpreter (tests/conftest.py), on the CPU too."""
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device, where the kernels themselves are tested")

    monkeypatch.setattr(TensorRecurrence, "steps", steps_by_triton)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of numbers that the kernels do not store
@pytest.mark.usefixtures("interpreter", "poison")
@pairwise(case=CASES, size=[(3, 3, 5, 17, 2), (1, 1, 1, 1, 1), (2, 20, 3, 20, 1)], zoneout=[0.3, 0.0])
def test_they_err_no_more_than_the_reference(case: Case, size: tuple[int, ...], zoneout: float) -> None:
    steps, batch_size, input_size, hidden_size, num_layers = size
    # Not state and weight dropout, whose masks are drawn in another precision: `test_masks` has them.
    stack = case.build(input_size, hidden_size, num_layers, zoneout=zoneout)
    inputs = [(random_input(stack, steps, batch_size), random_state(stack, batch_size)) for _ in range(3)]

    def runs(forward: Callable[..., Any]) -> list[Run]:
        return [run(seeded(forward), stack, *in_dtype_of(stack, *pair)) for pair in inputs]

    truth = runs(stack.forward_reference)
    stack = stack.float()
    assert_as_accurate(runs(own(stack)), runs(stack.forward_reference), truth)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_masks(case: Case) -> None:
    stack = case.build(5, 17, 2, **OPTIONS[0]).float()
    x, state = in_dtype_of(stack, random_input(stack, 3, 4), random_state(stack, 4))
    found, expected = (run(seeded(forward), stack, x, state) for forward in (own(stack), stack.forward_reference))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-4, msg=name)


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
from charlm.cells.triton import Options, kernels
from charlm.gpu.kernels import AS_WRITTEN, compiled, shape

dump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

def check(function, kernel, architecture, units):
    kinds = {"kept_row": "i32", "copy": "*bf16", "d_copy": "*bf16"}
    types = {argument.name: kinds.get(argument.what, "*fp32") for argument in kernel.arguments}
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

kind, options, *architectures = sys.argv[1:]
derived = passes_of(CELLS[kind](hidden=2, **eval(options)), False)
for full in (False, True):
    options = Options(full, full, full, full)
    both, functions = kernels(derived, options), compiled(derived, options)
    for kernel in (kernel for stage in (*both.forward, *both.backward) for kernel in stage.kernels):
        for units in (40, 512, 1500) if kernel.whole_rows else (512,):
            for architecture in map(int, architectures):
                check(functions[kernel.name], kernel, architecture, units)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux only")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_they_compile_for_gpus_without_spilling(case: Case) -> None:
    command = [sys.executable, "-c", COMPILE, case.kind, str(case.options), "80", "90", "100"]
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("interpreter")
@pairwise(case=CASES, options=[{}, {"zoneout": 0.3}])
def test_in_bf16_they_round_the_operands_of_products_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, case: Case, options: dict[str, float]
) -> None:
    from charlm.gpu.kernels import TritonSteps

    # The interpreter cuts off where a GPU rounds to bfloat16; so the product rounds what the kernels write.
    monkeypatch.setattr(TritonSteps, "BF16", torch.float32)
    assert_operands_are_rounded(case, 3, 17, options, own)
