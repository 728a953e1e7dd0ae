"""Autocast to bfloat16 on the CPU: products in bfloat16, states in float32."""

import pytest
import torch

from tests.cells.measure import CASES, Case, Run, random_input, random_state, run


def both_precisions(case: Case, which: str) -> tuple[Run, Run]:
    stack = case.build(6, 17, 2).float()
    x, state = random_input(stack, 8, 3).float(), random_state(stack, 3)

    def autocast_forward(*args: object) -> object:
        # As in training: the backward pass is outside.
        with torch.autocast("cpu", torch.bfloat16):
            return getattr(stack, which)(*args)

    return run(autocast_forward, stack, x, state), run(getattr(stack, which), stack, x, state)


@pytest.mark.parametrize("which", ["forward", "forward_reference"])
def test_autocast_is_close_to_float32(case: Case, which: str) -> None:
    found, expected = both_precisions(case, which)
    # bfloat16 rounds to 2⁻⁹ = 0.2 %; eight steps of two layers gather up to ten of these, twice as many
    # with layer normalization. Where a sum near 0 rounds across relu's kink, a whole gradient goes.
    tolerance = 0.3 if "relu" in str(case) else 0.05
    for name, tensor in expected.items():
        assert found[name].dtype == torch.float32, name
        assert found[name].isfinite().all(), name
        assert (found[name] - tensor).norm() <= tolerance * tensor.norm() + 1e-6, name
    assert not torch.equal(found["y"], expected["y"]), "autocast did nothing"


def test_recurrent_weights_gather_their_gradient_in_float32(case: Case) -> None:
    found, _ = both_precisions(case, "forward_reference")
    for name in case.build(5, 70).program(0).recurrent():
        gradient = found[f"d{name}_l0"]
        assert (gradient.bfloat16().float() != gradient)[gradient != 0].float().mean() > 0.5, name


# The state of an RNN is no sum over steps: relu leaves the bfloat16 product as it is.
@pytest.mark.parametrize("case", [case for case in CASES if case.kind != "rnn"], ids=str)
def test_the_state_of_the_reference_is_not_rounded_to_bfloat16(case: Case) -> None:
    found, _ = both_precisions(case, "forward_reference")
    for name in found.keys() & {"h", "c"}:
        assert (found[name].bfloat16().float() != found[name]).float().mean() > 0.9, name
