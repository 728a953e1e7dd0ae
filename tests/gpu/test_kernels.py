"""Triton's kernels: interpreted on the CPU, and compiled for three GPUs."""

import importlib.util
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from charlm.cells import Cell, sigmoid, tanh, where
from charlm.gpu.product import torch_product
from tests.cells.measure import (
    CASES,
    Case,
    Run,
    assert_equal_runs,
    error,
    hold_to_the_rule,
    in_dtype_of,
    layers_of,
    own,
    random_input,
    random_state,
    resets_of,
    rounded,
    run,
    seeded,
)
from tests.cells.programs import cells
from tests.cells.test_bf16 import assert_operands_are_rounded
from tests.conftest import ROOT
from tests.pairwise import pairwise

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")
OPTIONS = [{"zoneout": 0.3, "residual": True}, {"state": 0.4, "weights": 0.2, "zoneout": 0.3}, {}]
SIZES = [(6, 3, 5, 7), (1, 1, 1, 1), (4, 2, 7, 7), (5, 4, 11, 3)]  # T, B, I, H


def two_ways(cell: Cell, size: tuple[int, ...], options: dict[str, Any], resets: bool) -> list[Run]:
    """One window by the reference loop and by the loop of GPUs."""
    T, B, inputs, H = size
    stack = layers_of(cell.model_copy(update={"hidden": H}), inputs, **options)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    x, state = in_dtype_of(stack, random_input(stack, T, B), random_state(stack, B))
    resets_TB = resets_of(T, B) if resets else None
    return [run(seeded(f, resets_TB), stack, x, state) for f in (stack.forward_reference, own(stack))]


class Choice(Cell):
    """Its backward pass loads a choice between two values, and the condition that it was made by."""

    kind: Any = "choice"

    def step(self, p: Any, x: Any, h: Any) -> Any:
        v, g = p.product("weight_hh", h, 2) + p.product("weight_ih", x, 2)
        y = where(v > 0.1, v, -0.4) * sigmoid(g)
        return y * 0.5 + tanh(y)


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("interpreter")
def test_a_choice_and_its_condition_are_both_saved() -> None:
    expected, found = two_ways(Choice(), (5, 3, 4, 4), {}, False)
    assert_equal_runs(found, expected, tolerance=1e-5)


@needs_triton
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("interpreter")
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells(jumps=False), st.sampled_from(SIZES), st.sampled_from(OPTIONS), st.booleans())
def test_triton_kernels_of_random_cells(cell: Cell, size: tuple[int, ...], options: Any, resets: bool) -> None:
    expected, found = two_ways(cell, (2, *size[1:]), options, resets)
    for name, tensor in expected.items():
        largest = float(tensor.abs().max().clamp(min=1))
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-4 * largest, msg=name)


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of numbers that the kernels do not store
@pytest.mark.usefixtures("interpreter", "poison")
@pairwise(
    case=CASES, size=[(3, 3, 5, 17, 1), (1, 1, 1, 1, 1), (2, 5, 60, 60, 1)], options=OPTIONS, resets=[True, False]
)
def test_triton_kernels_err_no_more_than_the_reference(
    case: Case, size: tuple[int, ...], options: dict[str, Any], resets: bool
) -> None:
    steps, batch_size, *sizes = size
    hold_to_the_rule(case.build(*sizes, **options), steps, batch_size, own, resets)


COMPILE = """\
import re, subprocess, sys, tempfile, warnings
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

def check(function, kernel, architecture, units, index=tl.int32):
    kinds = {"zoneout_row": "i32", "copy": "*bf16", "d_copy": "*bf16"}
    types = {argument.name: kinds.get(argument.kind, "*fp32") for argument in kernel.arguments}
    types |= {"B": "i32", "N": "i32", "BLOCK": "constexpr", "INDEX": "constexpr"}
    block = shape(kernel, units)
    constants = {"BLOCK": block.pop("BLOCK"), "INDEX": index}
    source = ASTSource(fn=function, signature=types, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={**block, **AS_WRITTEN})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])
        used = subprocess.run([dump, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    # Registers that do not suffice spill to the stack. Triton 3.7 spills up to 24 bytes of a kernel of 1,500 units.
    spilled = int(re.search(r"STACK:(\\d+)", used)[1])
    assert spilled <= (24 if triton.__version__.startswith("3.7.") else 0), (kernel.name, units, used)
    assert "LOCAL:0 " in used, (kernel.name, units, used)
    assert compiled.metadata.shared <= 48 * 1024

for kind, options in eval(sys.argv[1]):
    derived = passes_of(CELLS[kind](hidden=2, **options).program(square=False))
    for full in (False, True):
        options = Options(full, full, full, full)
        both, functions = kernels(derived, options), compiled(derived, options)
        for kernel in (kernel for _, those in (*both.forward, *both.backward) for kernel in those):
            for units in (40, 512, 1500) if kernel.whole_rows else (512,):
                for architecture in (80, 90, 100):
                    check(functions[kernel.name], kernel, architecture, units)
            check(functions[kernel.name], kernel, 90, 512, tl.int64)
"""


@pytest.mark.slow
@needs_triton
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux only")
@pytest.mark.parametrize("half", [0, 1])
def test_they_compile_for_gpus_without_spilling(half: int) -> None:
    command = [sys.executable, "-c", COMPILE, repr([(case.kind, case.options) for case in CASES[half::2]])]
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_triton
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("interpreter")
def test_in_bf16_they_round_the_operands_of_products_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, case: Case
) -> None:
    from charlm.gpu.kernels import TritonSteps

    # The interpreter cuts off where a GPU rounds to bfloat16; so the product rounds what the kernels write.
    monkeypatch.setattr(TritonSteps, "BF16", torch.float32)
    assert_operands_are_rounded(case, 1, 17, {"zoneout": 0.3}, own, layers=1)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_sums_of_bf16_operands_are_not_rounded(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    a, b = torch.randn(17, 300, device=device), torch.randn(300, 40, device=device)
    truth, exact = rounded(a).double() @ rounded(b).double(), a.double() @ b.double()
    for one, other in ((a, b), (a.t().contiguous().t(), b.t().contiguous().t())):
        for out in (None, torch.empty(17, 40, device=device)):
            found = torch_product(one, other, bf16=True, out=out)
            assert found.dtype == torch.float32
            assert out is None or found is out
            assert error(found, truth) < 1e-3 < error(found, exact)
