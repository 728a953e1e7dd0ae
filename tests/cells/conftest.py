"""A test that takes `case` runs over every kind in CELLS and every variant."""

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

from charlm.cells.window import Gradients, Window
from charlm.gpu.recurrence import GpuDriver
from charlm.gpu.steps import Steps
from tests.cells.measure import CASES, Case


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tensors hold NaN, so that memory which nothing writes shows in the results."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        original = getattr(owner, name)

        def poisoned(*args: Any, original: Any = original, **options: Any) -> Tensor:
            tensor = original(*args, **options)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        monkeypatch.setattr(owner, name, poisoned)


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop of GPUs computes by Triton's kernels on the CPU too, in Triton's interpreter (tests/conftest.py)."""
    if importlib.util.find_spec("triton") is None or torch.cuda.is_available():
        pytest.skip("no Triton, or no interpreter of it")

    def steps_by_triton(driver: GpuDriver, window: Window, gradients: Gradients | None = None) -> Steps:
        from charlm.gpu.kernels import TritonSteps

        return TritonSteps(window, gradients)

    monkeypatch.setattr(GpuDriver, "steps", steps_by_triton)
