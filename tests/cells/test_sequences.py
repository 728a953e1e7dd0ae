"""What must hold of any recurrent layer: windows join, streams keep apart, layers stack."""

from typing import Any

import pytest
import torch

from tests.cells.measure import Case, as_tuple, random_input, random_state


@pytest.mark.parametrize("options", [{}, {"residual": True, "zoneout": 0.3}], ids=str)
def test_a_window_split_in_two_equals_the_whole(case: Case, options: dict[str, Any]) -> None:
    stack = case.build(3, 5, 3, **options).eval()
    x, state = random_input(stack, 7, 2), random_state(stack, 2)
    whole_y, whole_last = stack(x, state)
    first_y, between = stack(x[:3], state)
    second_y, last = stack(x[3:], between)
    torch.testing.assert_close(torch.cat([first_y, second_y]), whole_y, rtol=1e-12, atol=1e-12)
    for found, expected in zip(as_tuple(last), as_tuple(whole_last), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_permuted_streams_permute_outputs_and_states(case: Case) -> None:
    stack = case.build(3, 5, 2)
    x, state = random_input(stack, 4, 3), random_state(stack, 3)
    order = [2, 0, 1]
    permuted = tuple(tensor[:, order] for tensor in as_tuple(state))
    y, last = stack(x, state)
    found_y, found_last = stack(x[:, order], permuted[0] if len(permuted) == 1 else permuted)
    torch.testing.assert_close(found_y, y[:, order], rtol=1e-12, atol=1e-12)
    for found, expected in zip(as_tuple(found_last), as_tuple(last), strict=True):
        torch.testing.assert_close(found, expected[:, order], rtol=1e-12, atol=1e-12)


def test_outputs_see_neither_other_streams_nor_the_future(case: Case) -> None:
    stack = case.build(3, 5, 2)
    x = random_input(stack, 4, 3).requires_grad_()
    y, _ = stack(x)
    (dx,) = torch.autograd.grad(y[1, 1].sum(), x)
    assert (dx[:, [0, 2]] == 0).all()
    assert (dx[2:] == 0).all()
    assert (dx[:2, 1] != 0).any(dim=1).all()


@pytest.mark.parametrize("residual", [False, True])
def test_a_layer_reads_the_outputs_of_the_one_below(case: Case, residual: bool) -> None:
    stack = case.build(3, 4, 3, residual=residual)
    x, state = random_input(stack, 3, 2), random_state(stack, 2)
    y, last = x, []
    for layer in range(3):
        single = case.build(stack.layer_input_size(layer), 4)
        weights = {n: w for n, w in stack.state_dict().items() if n.endswith(f"_l{layer}")}
        single.load_state_dict({name.replace(f"_l{layer}", "_l0"): w for name, w in weights.items()})
        part = tuple(tensor[layer : layer + 1] for tensor in as_tuple(state))
        output, last_of_layer = single(y, part[0] if len(part) == 1 else part)
        y = y + output if residual and layer > 0 else output
        last.append(as_tuple(last_of_layer))

    found_y, found_last = stack(x, state)
    torch.testing.assert_close(found_y, y, rtol=1e-12, atol=1e-12)
    for found, parts in zip(as_tuple(found_last), zip(*last, strict=True), strict=True):
        torch.testing.assert_close(found, torch.cat(parts), rtol=1e-12, atol=1e-12)
