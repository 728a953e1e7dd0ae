"""A test that takes `case` runs over every kind in CELLS and every variant."""

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor

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
def interpreter() -> None:
    """The loop of GPUs computes on the CPU too, in Triton's interpreter (tests/conftest.py)."""
    if importlib.util.find_spec("triton") is None or torch.cuda.is_available():
        pytest.skip("no Triton, or no interpreter of it")
