"""Gates far out of their range: every backend computes what the reference does, without NaN."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from charlm.gpu.recurrence import TensorRecurrence
from tests.cells.measure import CASES, Case, as_tuple, own, steps_by_triton
from tests.pairwise import pairwise

EXTREMES = (0.0, 88.0, -88.0, 110.0, -110.0, 1e4, -1e4)


def kernel(stack: Any, request: pytest.FixtureRequest) -> Callable[..., Any]:
    request.getfixturevalue("needs_kernels")
    assert stack.select_backend("cpu").backend.name == "fused CPU kernel"
    return stack


def loop(stack: Any, request: pytest.FixtureRequest) -> Callable[..., Any]:
    return own(stack)


def triton(stack: Any, request: pytest.FixtureRequest) -> Callable[..., Any]:
    if importlib.util.find_spec("triton") is None or torch.cuda.is_available():
        pytest.skip("no Triton, or no interpreter of it")
    request.getfixturevalue("monkeypatch").setattr(TensorRecurrence, "steps", steps_by_triton)
    return own(stack)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of numbers that Triton's interpreter does not store
@pairwise(case=CASES, backend=[kernel, loop, triton])
def test_extreme_arguments_of_gates(case: Case, backend: Callable[..., Any], request: pytest.FixtureRequest) -> None:
    """The input is the arguments, in most combinations; from the zero state on, nothing else reaches the gates."""
    hidden = 3
    rows = case.build(1, hidden).get_parameter("weight_ih_l0").shape[0]
    stack = case.build(rows, hidden).float()
    with torch.no_grad():
        for name, parameter in stack.named_parameters():
            if name == "weight_ih_l0":
                parameter.copy_(torch.eye(rows))
            elif not name.startswith("weight_ln"):
                parameter.zero_()
    streams = 12 if backend is triton else 200  # Triton's interpreter is slow
    x = torch.tensor(EXTREMES)[torch.randint(len(EXTREMES), (4, streams, rows))]
    upstream = torch.randn(4, streams, hidden)

    def run(forward: Callable[..., Any], x: Tensor) -> dict[str, Tensor]:
        x = x.clone().requires_grad_()
        y, last = forward(x, None)
        (dx,) = torch.autograd.grad((y * upstream).sum(), x)
        states = dict(zip(stack.state_names, as_tuple(last), strict=True))
        return {name: tensor.detach() for name, tensor in {"y": y, **states, "dx": dx}.items()}

    found = run(backend(stack, request), x)
    truth = run(stack.double().forward_reference, x.double())
    for name, tensor in truth.items():
        # In single precision the m of an sLSTM is known to a ten-thousandth.
        torch.testing.assert_close(found[name].double(), tensor, rtol=5e-4, atol=5e-4, msg=name)
