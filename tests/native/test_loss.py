"""Cross entropy."""

import pytest
import torch

from charlm.layers import cross_entropy
from tests.cells.measure import assert_as_accurate
from tests.pairwise import pairwise

pytestmark = pytest.mark.usefixtures("needs_kernels")


@pairwise(shape=[(1, 1, 1), (3, 2, 5), (40, 30, 65), (2, 1, 1000)], scale=[1.0, 30.0], number=[1, 4])
def test_cross_entropy(shape, scale, number, threads):
    threads(number)
    logits = (scale * torch.randn(shape, dtype=torch.float64) + 100).float().double()
    targets = torch.randint(shape[-1], shape[:-1])
    upstream = torch.randn(shape[:-1], dtype=torch.float64)

    def found(function, dtype):
        inputs = logits.to(dtype).requires_grad_()
        nats = function(inputs, targets)
        (gradient,) = torch.autograd.grad(nats, inputs, upstream.to(dtype))
        return {"nats": nats.detach(), "gradient": gradient}

    def reference(logits, targets):
        return torch.nn.functional.cross_entropy(logits.movedim(-1, 1), targets, reduction="none")

    truth = found(reference, torch.float64)
    assert_as_accurate([found(cross_entropy, torch.float32)], [found(reference, torch.float32)], [truth])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_cross_entropy_of_numbers_that_are_not_finite(value):
    logits = torch.where(torch.eye(40, dtype=torch.bool), value, 0.0).requires_grad_()
    nats = cross_entropy(logits, torch.arange(40).roll(1))
    nats.sum().backward()
    assert nats.isnan().all()
    assert logits.grad is not None
    assert logits.grad.isnan().any(1).all()


def test_cross_entropy_of_operands_with_gaps():
    logits, targets = torch.randn(3, 6, 4).movedim(1, 2), torch.arange(24).view(3, 8)[:, ::2] % 6
    expected = torch.nn.functional.cross_entropy(logits.movedim(-1, 1), targets, reduction="none")
    torch.testing.assert_close(cross_entropy(logits, targets), expected)


@pytest.mark.parametrize("targets", [torch.tensor([0, -1]), torch.tensor([0, 3]), torch.tensor([0, 0, 0])])
def test_targets_that_do_not_fit(targets):
    with pytest.raises(ValueError, match="targets: found"):
        cross_entropy(torch.zeros(2, 3), targets)
