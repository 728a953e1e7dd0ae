"""Triton's kernels for a micro-step: in its interpreter on the CPU, and compiled for three generations of GPUs."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from charlm.cells import CELLS
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
from tests.cells.test_bf16 import assert_operands_are_rounded
from tests.conftest import ROOT
from tests.gpu.test_recurrence import OPTIONS, seeded
from tests.pairwise import pairwise

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton")


@pytest.fixture
def pointwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels, in Triton's interpreter (tests/conftest.py), on the CPU too."""
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device, where the kernels themselves are tested")

    monkeypatch.setattr(TensorRecurrence, "steps", steps_by_triton)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of numbers that the kernels do not store
@pytest.mark.usefixtures("pointwise", "poison")
@pairwise(case=CASES, size=[(3, 3, 5, 17, 2), (1, 1, 1, 1, 1), (2, 20, 3, 20, 1)], options=OPTIONS)
def test_they_err_no_more_than_the_reference(case: Case, size: tuple[int, ...], options: dict[str, float]) -> None:
    steps, batch_size, input_size, hidden_size, num_layers = size
    # Not state and weight dropout, whose masks are drawn in another precision: `test_masks` has them.
    zoneout = {name: p for name, p in options.items() if name == "zoneout"}
    stack = case.build(input_size, hidden_size, num_layers, **zoneout)
    inputs = [(random_input(stack, steps, batch_size), random_state(stack, batch_size)) for _ in range(3)]

    def runs(forward: Callable[..., Any]) -> list[Run]:
        return [run(seeded(forward), stack, *in_dtype_of(stack, *pair)) for pair in inputs]

    truth = runs(stack.forward_reference)
    stack = stack.float()
    assert_as_accurate(runs(own(stack)), runs(stack.forward_reference), truth)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("pointwise")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_masks(case: Case) -> None:
    stack = case.build(5, 17, 2, **OPTIONS[0]).float()
    x, state = in_dtype_of(stack, random_input(stack, 3, 4), random_state(stack, 4))
    found, expected = (run(seeded(forward), stack, x, state) for forward in (own(stack), stack.forward_reference))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-4, msg=name)


COMPILE = """\
import re, subprocess, sys, tempfile, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from charlm.cells import CELLS
from charlm.gpu import normalized, pointwise

NUMBERS = {"B", "H", "added_row", "before_stride", "after_stride", "made_stride", "kept_row", "first_stride"}
FLOATS = {"epsilon"}
dump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

def check(function, architecture, block=256, warps=4, **constants):
    def type_of(name):
        if name in ("operand", "d_operand"):
            return "*bf16"
        kinds = {"i32": name in NUMBERS, "fp32": name in FLOATS, "constexpr": name.isupper()}
        return next((kind for kind, fits in kinds.items() if fits), "*fp32")

    types = {name: type_of(name) for name in function.arg_names}
    source = ASTSource(fn=function, signature=types, constexprs=constants | {"BLOCK": block})
    options = {"num_warps": warps, **pointwise.AS_WRITTEN}
    kernel = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        used = subprocess.run([dump, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    # Registers that do not suffice spill to the stack.
    assert "STACK:0 " in used and "LOCAL:0 " in used, used
    assert kernel.metadata.shared <= 48 * 1024

kind, *architectures = sys.argv[1:]
for e in CELLS[kind].gpu_kernel.variants:
    sizes = {"G": e.gates, "S": len(e.direct), "K": e.saved}
    direct = pointwise.bits(e.direct)
    parts = e.parts and {name.upper(): pointwise.compiled(part) for name, part in e.parts._asdict().items()}
    for architecture in map(int, architectures):
        if parts:
            shapes = [normalized.shape(H) for H in (40, 512, 1500)]
            for shape, full in zip(shapes, (True, False, True)):
                sizes |= {"block": shape["BLOCK"], "warps": shape["num_warps"]}
                check(normalized.normalized_forward, architecture, **sizes, UPDATE=parts["UPDATE"],
                      OUTPUT=parts["OUTPUT"], ZONES=full, COPIED=full, MASKED=full)
                check(normalized.normalized_backward, architecture, **sizes, UPDATE_BACK=parts["UPDATE_BACK"],
                      OUTPUT_BACK=parts["OUTPUT_BACK"], DIRECT=direct, COPIED=full, MASKED=full, ZONES=3 * full)
            continue
        sizes |= {"APART": e.apart}
        for full in (False, True):
            check(pointwise.forward_step, architecture, **sizes, FORWARD=pointwise.compiled(e.forward), ZONES=full,
                  COPIED=full, MASKED=full)
            check(pointwise.backward_step, architecture, **sizes, BACKWARD=pointwise.compiled(e.backward),
                  DIRECT=direct, COPIED=full, MASKED=full, LAST=full, ZONES=3 * full)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux only")
@pytest.mark.parametrize("kind", CELLS)
def test_they_compile_for_gpus_without_spilling(kind: str) -> None:
    command = [sys.executable, "-c", COMPILE, kind, "80", "90", "100"]
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("pointwise")
@pairwise(case=CASES, options=[{}, {"zoneout": 0.3}])
def test_in_bf16_they_round_the_operands_of_products_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, case: Case, options: dict[str, float]
) -> None:
    from charlm.gpu.pointwise import TritonSteps

    # The interpreter cuts off where a GPU rounds to bfloat16; so the product rounds what the kernels write.
    monkeypatch.setattr(TritonSteps, "BF16", torch.float32)
    assert_operands_are_rounded(case, 3, 17, options, own)
