"""Random masks: the same with and without a compiler."""

import pytest
import torch

from charlm.native.random import random_mask
from charlm.system.process_group import Shard


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


@pytest.mark.parametrize(
    ("shape", "dim"), [((8,), 0), ((3, 8, 5), 1), ((4, 12), 1), ((2, 3, 4), 2), ((8, 7), 0)], ids=str
)
@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.usefixtures("needs_kernels")
def test_parts_make_up_the_whole(
    shape: tuple[int, ...], dim: int, by_kernel: bool, request: pytest.FixtureRequest
) -> None:
    if not by_kernel:
        request.getfixturevalue("no_kernels")
    torch.manual_seed(1)
    whole, following = random_mask(shape, 30000), torch.rand(3)
    for count in (2, 4):
        of_part = (*shape[:dim], shape[dim] // count, *shape[dim + 1 :])
        parts = []
        for index in range(count):
            torch.manual_seed(1)
            parts.append(random_mask(of_part, 30000, Shard(index, count), dim))
            assert torch.equal(torch.rand(3), following)
        assert torch.equal(torch.cat(parts, dim), whole)
