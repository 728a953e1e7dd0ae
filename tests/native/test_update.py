"""The norm of all gradients, Adam, and the running average of the weights."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from charlm.native.update import adam_step, gradient_norm
from tests.cells.measure import Run, assert_as_accurate
from tests.pairwise import pairwise

pytestmark = pytest.mark.usefixtures("needs_kernels")

# About the length of a vector and of a chunk.
SHAPES = [[(1,)], [(5,), (3, 11), (64, 64)], [(4095,), (2, 17, 241), (4097,)], [(1,), (3, 4096), (33, 33)]]
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.98), "weight_decay": 0.1}
OPTIMIZERS = [
    (torch.optim.AdamW, ADAMW),
    (torch.optim.Adam, {"lr": 1e-3, "eps": 1e-3}),
    (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.3}),
]
SCALES = [1.0, 3.7, 1.0, 1.5, 22.0]
DECAYS = [0.0, 0.2, 0.9, 0.99, 0.999]


class Updates:
    """Parameters with an optimizer and running averages, and gradients for five steps: the same for each seed."""

    def __init__(self, shapes: list[tuple[int, ...]], kind: Any, options: dict[str, Any], seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def numbers(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=generator) * 10 ** torch.empty(()).uniform_(-3, 1, generator=generator)

        self.weights = [numbers(shape).requires_grad_() for shape in shapes]
        self.gradients = [[numbers(shape) for shape in shapes] for _ in range(5)]
        # Some decay, others do not.
        groups = [{"params": self.weights[:1]}, {"params": self.weights[1:], "weight_decay": 0.0}]
        self.optimizer = kind(groups, **options)
        self.averages = {weight: weight.detach().clone() for weight in self.weights}

    def by_kernel(self) -> Run:
        for number in range(5):
            self.optimizer.grad_scale = torch.tensor(SCALES[number])
            self.give_gradients(number)
            lr = self.optimizer.param_groups[0]["lr"]
            assert adam_step(self.optimizer, self.averages, torch.tensor([lr, DECAYS[number]], dtype=torch.float64))
        return self.found()

    def by_torch(self, dtype: torch.dtype) -> Run:
        other = copy.deepcopy(self)
        for weight, average in other.averages.items():
            weight.data, average.data = weight.data.to(dtype), average.data.to(dtype)
        for number in range(5):
            other.give_gradients(number, SCALES[number])
            other.optimizer.step()
            get_ema_multi_avg_fn(DECAYS[number])([*other.averages.values()], [*other.averages], None)
        return other.found()

    def give_gradients(self, number: int, scale: float = 1) -> None:
        for weight, gradient in zip(self.weights, self.gradients[number], strict=True):
            weight.grad = gradient.to(weight.dtype) / scale

    def found(self) -> Run:
        found = {}
        for place, weight in enumerate(self.weights):
            state = self.optimizer.state[weight]
            found |= {f"weight {place}": weight.detach(), f"average {place}": self.averages[weight]}
            found |= {f"{name} {place}": state[name] for name in ("exp_avg", "exp_avg_sq", "step") if state}
        return {name: tensor.clone() for name, tensor in found.items()}


@pairwise(shapes=SHAPES, optimizer=OPTIMIZERS, number=[1, 2, 3])
def test_steps_are_as_accurate_as_torchs(shapes, optimizer, number, threads):
    threads(number)
    runs = [Updates(shapes, *optimizer, seed=seed) for seed in range(3)]
    truth, reference = ([one.by_torch(dtype) for one in runs] for dtype in (torch.float64, torch.float32))
    assert_as_accurate([one.by_kernel() for one in runs], reference, truth)


@pytest.mark.parametrize("gradient", [torch.randn(5, 3).double(), torch.randn(3, 5).t()], ids=["float64", "gaps"])
def test_what_the_kernel_does_not_take_is_left_to_torch(gradient):
    weight = torch.randn(5, 3, dtype=gradient.dtype, requires_grad=True)
    before = weight.detach().clone()
    weight.grad = gradient
    assert gradient_norm([gradient]) == torch.nn.utils.get_total_norm([gradient])
    assert not adam_step(torch.optim.AdamW([weight]), {}, torch.zeros(2, dtype=torch.float64))
    assert torch.equal(weight, before)
    assert gradient_norm([]) == 0


def test_norm_of_views_of_one_buffer():
    """As processes get their gradients: no view begins where a vector would."""
    sizes = [4096, 5, 4097]
    gradients = [*torch.randn(1 + sum(sizes))[1:].split(sizes)]
    gradients[0] *= 1e15  # also of numbers whose squares are large
    truth = torch.cat(gradients).double().norm()
    assert gradient_norm(gradients).item() == pytest.approx(truth.item(), rel=2e-7)
    assert gradient_norm(gradients).shape == ()


@pytest.mark.parametrize(("value", "norm"), [(math.nan, math.nan), (-math.inf, math.inf), (1e20, math.inf)])
def test_norm_of_numbers_that_are_not_finite(value, norm):
    """A float cannot hold the square of the last one."""
    gradient = torch.ones(4101)
    gradient[4100] = value
    assert gradient_norm([torch.ones(3), gradient]).item() == pytest.approx(norm, nan_ok=True)
