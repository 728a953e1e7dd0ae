"""Dropout: what it drops, when, and how its masks are drawn."""

import pytest
import torch
from torch import Tensor

from charlm.cells.derivative import passes_of
from charlm.layers import dropout_mask
from charlm.layers.backend import LayerCall
from charlm.layers.reference import reference_layer
from charlm.system.process_group import Shard
from tests.cells.measure import Case, random_input, random_state, seeded


def values(tensor: Tensor) -> list[float]:
    return sorted(set(tensor.flatten().tolist()))


def test_a_mask_scales_what_it_does_not_drop_and_its_elements_are_independent():
    like = torch.zeros(1, dtype=torch.float64)
    mask = dropout_mask((1000, 400), 0.2, like)
    assert (mask.shape, mask.dtype) == ((1000, 400), torch.float64)
    # On the CPU p is a multiple of 2⁻¹⁶.
    assert values(mask) == pytest.approx([0.0, 1.25], rel=1e-5)
    on = mask > 0
    # Standard error: √(0.8 · 0.2 / 400,000) = 0.0006
    assert on.float().mean().item() == pytest.approx(0.8, abs=0.003)
    # Neighbors, also those of one random number, both on: 0.64; standard error 0.0008.
    for step in (1, 2, 3, 4, 400):
        flat = on.flatten()
        assert (flat[step:] & flat[:-step]).float().mean().item() == pytest.approx(0.64, abs=0.005)
    assert on.float().mean(0).std().item() == pytest.approx((0.16 / 1000) ** 0.5, rel=0.15)


@pytest.mark.parametrize("kernels", ["needs_kernels", "no_kernels"])
def test_processes_that_share_a_batch_draw_the_masks_of_one(kernels, request):
    request.getfixturevalue(kernels)
    options = {"state": 0.3, "between_layers": 0.3, "weights": 0.3, "zoneout": 0.3}
    stack = Case("lstm").build(3, 5, 2, **options)
    x, state = random_input(stack, 4, 6), random_state(stack, 6)
    whole, _ = seeded(stack)(x, state)
    for index in range(2):
        stack.shard = Shard(index, 2)
        y, _ = seeded(stack)(stack.shard.of(x, 1), tuple(stack.shard.of(tensor, 1) for tensor in state))
        torch.testing.assert_close(y, stack.shard.of(whole, 1), rtol=1e-12, atol=1e-12)


def test_zoneout_holds_other_units_at_every_step_and_is_its_mean_in_evaluation():
    stack = Case("lstm").start(1, 300, zoneout=0.25)
    stack.init_uniform_(0.0)  # What a step makes is 0.
    y, _ = stack(torch.zeros(3, 40, 1), (torch.ones(1, 40, 300), torch.zeros(1, 40, 300)))
    assert values(y) == [0.0, 1.0]
    for t in range(3):
        # Standard error: below √(0.25 · 0.75 / 12,000) = 0.004
        assert y[t].mean().item() == pytest.approx(0.25 ** (t + 1), abs=0.016)
    assert (y[1:] <= y[:-1]).all()
    assert not torch.equal(y[0, 0], y[0, 1])
    y, _ = stack.eval()(torch.zeros(3, 4, 1), (torch.ones(1, 4, 300), torch.zeros(1, 4, 300)))
    assert torch.equal(y, torch.tensor([0.25, 0.25**2, 0.25**3]).view(3, 1, 1).expand(3, 4, 300))


@pytest.mark.parametrize("variational", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_a_stack_is_its_layers_with_masks_drawn_from_the_lowest_up(case, residual, variational):
    """Each reads the outputs of the one below; the masks are drawn by hand in the documented order."""
    p, q, r, k = 0.4, 0.3, 0.2, 0.1
    dropout = {"between_layers": p, "state": q, "weights": r, "variational": variational}
    stack = case.build(3, 6, 2, zoneout=k, residual=residual, **dropout)
    x, state = random_input(stack, 4, 5), random_state(stack, 5)
    y, last = seeded(stack)(x, state)
    torch.manual_seed(1)

    def layer_by_hand(layer, inputs):
        mask = dropout_mask((5, 6), q, like=x)
        named = stack.layer_parameters(layer)
        for name in stack.forms[layer].program.recurrent():
            named[name] = named[name] * dropout_mask(tuple(named[name].shape), r, like=x)
        zoned_out = (dropout_mask((4, 5, 6 * len(state)), k, like=x) == 0).double()
        for name, of_state in zip(stack.cell.states, zoned_out.chunk(len(state), dim=2), strict=True):
            if name in stack.cell.internal:
                of_state.zero_()
        of_layer = tuple(tensor[layer] for tensor in state)
        given = {"mask": mask[None], "zoneout": zoned_out}
        passes = passes_of(stack.forms[layer].program, stack.options(training=True))
        return reference_layer(inputs, LayerCall(passes, named, inputs.shape[-1], of_layer, given))

    low, last_of_low = layer_by_hand(0, x)
    mask = dropout_mask((1 if variational else 4, 5, 6), p, like=x)
    high, last_of_high = layer_by_hand(1, low * mask)
    assert torch.equal(y, low + high if residual else high)
    assert all(map(torch.equal, last, map(torch.stack, zip(last_of_low, last_of_high, strict=True))))
