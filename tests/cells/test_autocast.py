"""Autocast to bfloat16 on the CPU: products in bfloat16, states in float32."""

import torch

from tests.cells.measure import Case, Run, random_input, random_state, run


def in_both_precisions(case: Case, which: str) -> tuple[Run, Run]:
    stack = case.build(6, 17, 2).float()
    x, state = random_input(stack, 8, 3).float(), random_state(stack, 3)

    def autocast_forward(*args: object) -> object:
        # As in training: the backward pass is outside.
        with torch.autocast("cpu", torch.bfloat16):
            return getattr(stack, which)(*args)

    return run(autocast_forward, stack, x, state), run(getattr(stack, which), stack, x, state)


def assert_close(case: Case, found: Run, expected: Run) -> None:
    # bfloat16 rounds to 2⁻⁹ = 0.2 %; eight steps of two layers gather up to ten of these, twice as many
    # with layer normalization. Where a sum near 0 rounds across relu's kink, a whole gradient goes.
    tolerance = 0.3 if "relu" in str(case) else 0.05
    for name, tensor in expected.items():
        assert found[name].dtype == torch.float32, name
        assert found[name].isfinite().all(), name
        assert (found[name] - tensor).norm() <= tolerance * tensor.norm() + 1e-6, name
    assert not torch.equal(found["y"], expected["y"]), "autocast did nothing"


def test_forward_is_close_to_float32(case: Case) -> None:
    assert_close(case, *in_both_precisions(case, "forward"))


def test_the_reference_is_close_to_float32_and_rounds_neither_states_nor_sums_of_gradients(case: Case) -> None:
    found, expected = in_both_precisions(case, "forward_reference")
    assert_close(case, found, expected)

    def rounded_share(tensor: torch.Tensor) -> float:
        return float((tensor.bfloat16().float() == tensor)[tensor != 0].float().mean())

    for name in case.build(5, 70).program(0).recurrent():
        assert rounded_share(found[f"d{name}_l0"]) < 0.5, name
    if case.kind != "rnn":  # whose state is no sum over steps: relu leaves the bfloat16 product as it is
        for name in found.keys() & {"h", "c"}:
            assert rounded_share(found[name]) < 0.1, name
