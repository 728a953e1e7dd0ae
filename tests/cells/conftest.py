"""A test that takes `case` runs over every kind in CELLS and every variant; one that takes `device`, on both."""

from collections.abc import Iterator

import pytest
import torch

from .measure import CASES, Case


@pytest.fixture(params=CASES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Tensors of these sizes only lose by being shared out among threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The CPU, and a GPU where there is one, in full single precision."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    # TF32, cuDNN's default for recurrent layers, has ten bits of mantissa: no error of float32.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield torch.device(request.param)
