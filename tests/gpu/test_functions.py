"""The functions of equations.py as Triton's kernels compute them: in its interpreter, or on a GPU."""

import math

import pytest
import torch

triton = pytest.importorskip("triton")
tl = triton.language

exp = pytest.importorskip("charlm.gpu.pointwise").exp


@triton.jit
def exponentials(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, exp(tl.load(x + at)))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of what the kernel does not take
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_exp(device: str) -> None:
    if (device == "cuda") != torch.cuda.is_available():
        pytest.skip("no CUDA device" if device == "cuda" else "Triton's interpreter is off where there is a GPU")
    special = torch.tensor([-math.inf, -1e38, -200.0, -100.0, 0.0, 88.0, 100.0, 1e30, math.inf, math.nan])
    x = torch.cat([special, torch.linspace(-80, 80, 1024 - len(special))]).to(device)
    found = torch.full_like(x, 7.0)
    exponentials[(1,)](x, found, N=len(x))
    torch.testing.assert_close(found.double(), x.double().exp().float().double(), rtol=4e-7, atol=1e-37, equal_nan=True)
