"""References and fused layers against the equations written out unit by unit (naive.py)."""

import pytest
import torch

from charlm.cells import dropout_mask
from tests.cells import naive
from tests.cells.measure import Case, as_tuple, random_input, random_state


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"state_dropout": 0.4}, {"weight_dropout": 0.4}, {"zoneout": 0.4}], ids=str)
def test_one_layer_follows_the_equations(case: Case, options: dict[str, float], training: bool) -> None:
    if case.kind not in naive.STEPS:
        pytest.skip(f"naive.py has no equations of {case.kind}")
    stack = case.build(3, 4, **options).train(training)
    x, state = random_input(stack, 3, 2), random_state(stack, 2)
    parameters = {name.removesuffix("_l0"): parameter.detach() for name, parameter in stack.named_parameters()}
    mask = torch.ones(2, 4, dtype=torch.float64)
    kept = torch.full((3, 2, 4 * len(stack.state_names)), options.get("zoneout", 0.0), dtype=torch.float64)
    torch.manual_seed(5)
    if training and "state_dropout" in options:
        mask = dropout_mask((2, 4), 0.4, like=mask)
        assert 0 < (mask == 0).sum() < 8, "the seed must drop some units and keep some"
    if training and "weight_dropout" in options:
        shape = tuple(parameters["weight_hh"].shape)
        parameters["weight_hh"] = parameters["weight_hh"] * dropout_mask(shape, 0.4, like=mask)
    if training and "zoneout" in options:
        kept = (dropout_mask(tuple(kept.shape), 0.4, like=kept) == 0).double()
    expected_y, expected_last = naive.layer(
        case.kind,
        case.options,
        x.tolist(),
        [tensor[0].tolist() for tensor in as_tuple(state)],
        {name: parameter.tolist() for name, parameter in parameters.items()},
        mask.tolist(),
        kept.tolist(),
    )

    for forward in (stack, stack.forward_reference):
        torch.manual_seed(5)
        y, last = forward(x, state)
        torch.testing.assert_close(y, torch.tensor(expected_y, dtype=torch.float64), rtol=1e-12, atol=1e-13)
        found_last = torch.stack([tensor[0] for tensor in as_tuple(last)])
        torch.testing.assert_close(found_last, torch.tensor(expected_last, dtype=torch.float64), rtol=1e-12, atol=1e-13)


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
