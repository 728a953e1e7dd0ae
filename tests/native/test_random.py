"""Random masks: the same with and without a compiler."""

import pytest
import torch

from charlm.native.random import random_mask


@pytest.mark.parametrize("shape", [(0,), (5,), (4, 16), (300, 7, 11)], ids=str)
@pytest.mark.parametrize("kept", [1, 40000, 65535, 65536])
@pytest.mark.usefixtures("needs_kernels")
def test_masks_do_not_depend_on_a_compiler(shape: tuple[int, ...], kept: int, request: pytest.FixtureRequest) -> None:
    torch.manual_seed(1)
    compiled, following = random_mask(shape, kept), torch.rand(3)
    request.getfixturevalue("no_kernels")
    torch.manual_seed(1)
    assert torch.equal(random_mask(shape, kept), compiled)
    assert torch.equal(torch.rand(3), following)
