"""Products of matrices and the decoder's linear map."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from charlm.layers import linear
from charlm.native.compiler import find_compiler
from charlm.native.operators import matmul
from tests.cells.measure import Case, error, hold_to_the_rule, rounded
from tests.cells.test_bf16 import assert_operands_are_rounded
from tests.conftest import ROOT
from tests.pairwise import pairwise

pytestmark = pytest.mark.usefixtures("needs_kernels")

SIZES = [(1, 1, 1), (7, 65, 33), (130, 17, 1000), (65, 130, 513), (13, 16, 256)]
# About those of tiles: 16 rows, 16 columns, 32 of K.
SIZES += [(1, 48, 64), (15, 15, 31), (16, 33, 32), (17, 31, 95), (31, 32, 1025), (33, 16, 512), (47, 64, 1100)]
TRANSPOSED = [(False, False), (True, False), (False, True), (True, True)]


def operands(M: int, N: int, K: int, transposed: tuple[bool, bool]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """a [M, K], b [K, N], either of them transposed in memory, and a bias [N]."""
    a = torch.randn(K, M).t() if transposed[0] else torch.randn(M, K)
    b = torch.randn(N, K).t() if transposed[1] else torch.randn(K, N)
    return a, b, torch.randn(N)


@pairwise(size=SIZES, transposed=TRANSPOSED, number=[1, 3])
def test_product_of_matrices(size, transposed, number, threads):
    threads(number)
    a, b, bias = operands(*size, transposed=transposed)
    truth = a.double() @ b.double() + bias
    allowed = 4 * error(a @ b + bias, truth) + 2 * torch.finfo(torch.float32).eps * float(truth.abs().max())
    assert error(matmul(a, b, bias), truth) <= allowed
    assert error(matmul(a, b), truth - bias) <= allowed
    assert_bf16_product(*size, transposed=transposed)


def assert_bf16_product(M: int, N: int, K: int, transposed: tuple[bool, bool]) -> None:
    a, b, bias = operands(M, N, K, transposed)
    truth = rounded(a).double() @ rounded(b).double()
    assert error(matmul(a, b, bf16=True), truth) <= 1e-5 * K**0.5 + 1e-6
    assert error(matmul(a, b, bias, bf16=True), truth + bias) <= 1e-5 * K**0.5 + 1e-6


def test_product_of_operands_with_gaps():
    a, b = torch.randn(40, 3, 70)[:, 1, ::2], torch.randn(70, 2, 40)[::2, 0, ::2]
    torch.testing.assert_close(matmul(a, b), a @ b)
    torch.testing.assert_close(matmul(a, b, bf16=True), rounded(a) @ rounded(b))


@pytest.mark.parametrize("rows", [1, 16])
def test_rounding_to_bf16_is_torch_s(rows):
    """To nearest, ties to even, NaN of any bits to NaN."""
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F817FFF, 0x7F7F7FFF, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF]
    x = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    x_N = torch.cat([x, -x, torch.tensor([0.0, 1e-30, torch.pi])])
    ones = torch.ones(rows, 1)
    expected = rounded(x_N).expand(rows, -1)
    torch.testing.assert_close(matmul(ones, x_N[None], bf16=True), expected, rtol=0, atol=0, equal_nan=True)
    for x_NK in (x_N[:, None], torch.stack([x_N, torch.zeros_like(x_N)]).t()):
        y_NM = matmul(x_NK, torch.ones(x_NK.shape[1], rows), bf16=True)
        torch.testing.assert_close(y_NM, expected.t(), rtol=0, atol=0, equal_nan=True)


def test_recurrent_products_of_more_summands_than_a_register_adds_up():
    hold_to_the_rule(Case("rnn").build(1, 530), 2, 3)
    assert_operands_are_rounded(Case("rnn"), 3, 530, {}, layers=1)


IN_A_PROCESS = """
import torch
from charlm.native.precision import choose_precision
from tests.native.test_products import SIZES, TRANSPOSED, assert_bf16_product, test_rounding_to_bf16_is_torch_s

print(choose_precision("auto", torch.device("cpu")))
for number in (1, 3):
    torch.set_num_threads(number)
    test_rounding_to_bf16_is_torch_s(rows=16)
    for size in SIZES:
        for transposed in TRANSPOSED:
            torch.manual_seed(0)
            assert_bf16_product(*size, transposed=transposed)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="no x86-64")
def test_products_by_tiles_of_amx():
    """Their instructions are computed in software: most CPUs have none. See also `scripts/stress sanitize`."""
    command = find_compiler()
    # GCC 12 miscompiles clones of functions with vector arguments wider than the registers.
    flags = [] if "clang" in command[0] else ["-fno-ipa-cp-clone"]
    tiles = shlex.join([*command, "-include", str(Path(__file__).with_name("software_tiles.h")), *flags])
    environment = os.environ | {"CXX": tiles, "CHARLM_KERNELS": "compile"}
    process = [sys.executable, "-c", IN_A_PROCESS]
    done = subprocess.run(process, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "AMX" in done.stdout


def test_linear_is_torch_s():
    x, w, b = (torch.randn(*shape, requires_grad=True) for shape in ((4, 3, 20), (7, 20), (7,)))
    upstream = torch.randn(4, 3, 7)
    for bias in (b, None):
        inputs = [x, w] if bias is None else [x, w, b]
        y, expected = linear(x, w, bias), F.linear(x, w, bias)
        torch.testing.assert_close(y, expected)
        gradients = (torch.autograd.grad(y, inputs, upstream) for y in (y, expected))
        for mine, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, theirs)
    assert linear(x[0, 0], w).shape == (7,)
    assert linear(torch.zeros(2, 0), torch.zeros(4, 0)).shape == (2, 4)
    assert linear(x.double(), w.double()).dtype == torch.float64
