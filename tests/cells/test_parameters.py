"""Where the parameters of a stack start."""

from typing import Any

import pytest

from tests.cells.measure import Case


def test_parameters_start_within_the_range_of_torch_or_of_the_config(case: Case) -> None:
    """Within ±1/√H, as in torch.nn; `init_uniform_` draws weights within its bound and clears biases."""
    stack = case.start(9, 64, 2)
    first = {name: parameter.detach().clone() for name, parameter in stack.named_parameters()}
    stack.init_uniform_(0.01)
    for layer in range(2):
        for declared in stack.program(layer).parameters:
            name = f"{declared.name}_l{layer}"
            if declared.bound is not None or any(start is not None for start in declared.starts):
                continue
            assert 0.8 / 8 < first[name].abs().max() <= 1 / 8, name
            largest = stack.get_parameter(name).abs().max()
            assert (0.009 < largest <= 0.01) if name.startswith("weight") else largest == 0, name


# Kind and options; a parameter of a layer with H = 500, in rows of H; what each row starts with (None: random).
STARTS: list[tuple[str, dict[str, Any], str, list[float | None]]] = [
    ("lstm", {"forget_bias": -0.5}, "bias_ih", [None, -0.5, None, None]),
    ("lstm", {"forget_bias": -0.5}, "bias_hh", [None, 0, None, None]),
    ("lstm", {"layer_norm": True, "forget_bias": 0.5}, "bias_ln_gates", [0, 0.5, 0, 0]),
    ("lstm", {"layer_norm": True, "forget_bias": 0.5}, "weight_ln_gates", [1] * 4),
    ("slstm", {"forget_bias": 2.5}, "bias", [None, 2.5, None, None]),
    ("rhn", {"depth": 2, "couple_gates": False, "gate_bias": -1.5}, "bias_hh", [None, -1.5, 1.5] * 2),
    ("sru", {"highway_bias": -2.0}, "bias", [0, -2.0]),
]


@pytest.mark.parametrize(("kind", "options", "name", "rows"), STARTS)
def test_special_biases(kind: str, options: dict[str, Any], name: str, rows: list[float | None]) -> None:
    """They are the same after `init_uniform_`, which clears the others."""
    stack = Case(kind).start(3, 500, 2, **options)
    for is_cleared in (False, True):
        if is_cleared:
            stack.init_uniform_(0.1)
        for layer in range(2):
            found = stack.get_parameter(f"{name}_l{layer}").view(-1, 500)
            for values, start in zip(found, rows, strict=True):
                assert (len(values.unique()) > 1) == (start is None and not is_cleared)
                assert start is None or (values == start).all()


def test_peepholes_of_an_sru_start_with_a_variance_of_one_half() -> None:
    stack = Case("sru").start(3, 500)
    assert stack.get_parameter("peephole_l0").var().item() == pytest.approx(0.5, rel=0.2)
