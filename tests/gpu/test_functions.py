"""The functions of Triton's kernels: in its interpreter, or on a GPU."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

triton = pytest.importorskip("triton")
tl = triton.language

functions = pytest.importorskip("charlm.gpu.functions")

SPECIAL = [-math.inf, -1e38, -200.0, -100.0, -0.0, 0.0, 1e-30, 88.0, 100.0, 1e30, math.inf, math.nan]
ONE: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {
    "exp": (torch.exp, 4e-7, 1e-37),
    "log": (torch.log, 4e-7, 1e-7),
    "sqrt": (torch.sqrt, 1e-7, 0.0),
    "sigmoid": (torch.sigmoid, 0.0, 2e-7),
    "tanh": (torch.tanh, 0.0, 3e-7),
    "softplus": (lambda x: -torch.nn.functional.logsigmoid(-x), 1e-5, 1e-37),
    "relu": (torch.relu, 0.0, 0.0),
}
"""PyTorch's function, and the relative and the absolute error that are allowed."""


@triton.jit
def of_one(x, y, N: tl.constexpr, FUNCTION: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, FUNCTION(tl.load(x + at)))


@triton.jit
def of_two(x, y, z, N: tl.constexpr, FUNCTION: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(z + at, FUNCTION(tl.load(x + at), tl.load(y + at)))


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def place(request):
    if (request.param == "cuda") != torch.cuda.is_available():
        pytest.skip("no CUDA device" if request.param == "cuda" else "Triton's interpreter is off where there is a GPU")
    return request.param


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of what the kernel does not take
@pytest.mark.parametrize("name", ONE)
def test_functions_of_one_vector(name, place):
    expected, relative, absolute = ONE[name]
    if name == "exp" and place == "cpu":
        relative = 4e-6  # the fused multiply-add of Triton 3.7's interpreter rounds twice
    x = torch.cat([torch.tensor(SPECIAL), torch.linspace(-80, 80, 1024 - len(SPECIAL))]).to(place)
    found = torch.full_like(x, 7.0)
    of_one[(1,)](x, found, N=len(x), FUNCTION=getattr(functions, name))
    # Rounded: what float32 cannot hold is infinite.
    truth = expected(x.double()).float().double()
    torch.testing.assert_close(found.double(), truth, rtol=relative, atol=absolute, equal_nan=True)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_are_nan_if_one_argument_is(name, place):
    numbers: Any = torch.tensor([*SPECIAL, 2.0, -2.0, 3.0, 4.0], device=place)
    x, y = (one.flatten().contiguous() for one in torch.meshgrid(numbers, numbers, indexing="ij"))
    found = torch.full_like(x, 7.0)
    of_two[(1,)](x, y, found, N=len(x), FUNCTION=getattr(functions, name))
    torch.testing.assert_close(found, getattr(torch, name)(x, y), rtol=0, atol=0, equal_nan=True)
