"""A test that takes `case` runs over every kind in CELLS and every variant; one that takes `device`, on both."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.cells.measure import CASES, Case


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The CPU, and a GPU where there is one, in full single precision."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    # TF32, cuDNN's default for recurrent layers, has ten bits of mantissa: no error of float32.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield torch.device(request.param)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tensors hold NaN, so that memory which nothing writes shows in the results."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        original = getattr(owner, name)

        def poisoned(*args: Any, original: Any = original, **options: Any) -> Tensor:
            tensor = original(*args, **options)
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        monkeypatch.setattr(owner, name, poisoned)
