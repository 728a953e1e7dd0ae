"""The activations that the reference loop records obey the equations."""

import pytest
import torch

from charlm.layers import Activations, RecurrentLayers
from tests.cells.measure import Case

T, B, INPUTS, H = 5, 2, 3, 4


def noted(layers: RecurrentLayers, resets_TB=None) -> tuple[list[dict[str, torch.Tensor]], torch.Tensor]:
    """States and gates of each layer, [T, B, H] by name, and the outputs; in float64."""
    layers = layers.double().eval()
    seen = [Activations() for _ in range(layers.num_layers)]
    x_TBI = torch.randn(T, B, INPUTS, dtype=torch.float64)
    with torch.no_grad():
        outputs, _ = layers.forward_reference(x_TBI, None, resets_TB, seen)
        plain, _ = layers.forward_reference(x_TBI, None, resets_TB)
    assert torch.equal(outputs, plain)
    return [{name: torch.stack(steps) for name, steps in (each.states | each.gates).items()} for each in seen], outputs


def test_the_first_state_of_the_top_layer_is_the_output(case: Case):
    layers = case.start(INPUTS, H, 2, zoneout=0.3)
    resets_TB = torch.tensor([[True, False], [False, False], [False, True], [False, False], [True, False]])
    seen = [Activations(), Activations()]
    outputs, _ = layers.double().eval().forward_reference(torch.randn(T, B, INPUTS).double(), None, resets_TB, seen)
    assert torch.equal(torch.stack(seen[1].states[layers.state_names[0]]), outputs)
    assert all(len(steps) == T for each in seen for steps in (each.states | each.gates).values())


def before(state_TBH: torch.Tensor) -> torch.Tensor:
    """The state before each step."""
    return torch.cat([torch.zeros_like(state_TBH[:1]), state_TBH[:-1]])


def test_lstm():
    [seen], _ = noted(Case("lstm").start(INPUTS, H))
    torch.testing.assert_close(seen["c"], seen["f"] * before(seen["c"]) + seen["i"] * seen["g"])
    torch.testing.assert_close(seen["h"], seen["o"] * seen["c"].tanh())


def test_gru():
    [seen], _ = noted(Case("gru").start(INPUTS, H))
    torch.testing.assert_close(seen["h"], (1 - seen["z"]) * seen["n"] + seen["z"] * before(seen["h"]))
    assert 0 < seen["r"].min() < seen["r"].max() < 1


@pytest.mark.parametrize("couple_gates", [True, False])
def test_rhn(couple_gates):
    layers = Case("rhn").start(INPUTS, H, depth=3, couple_gates=couple_gates)
    [seen], _ = noted(layers)
    states = [seen["s1"], seen["s2"], seen["s"]]
    assert "s3" not in seen
    for depth in (2, 3):
        old, g = states[depth - 2], seen[f"g{depth}"]
        c = 1 - g if couple_gates else seen[f"c{depth}"]
        a = old @ layers.weight_hh_l0[depth - 1].T + layers.bias_hh_l0[depth - 1]
        torch.testing.assert_close(states[depth - 1], a[..., :H].tanh() * g + old * c)


@pytest.mark.parametrize("forget_gate", ["sigmoid", "exponential"])
def test_slstm(forget_gate):
    [seen], _ = noted(Case("slstm").start(INPUTS, H, forget_gate=forget_gate))
    assert set(seen) == {"h", "c", "i", "f", "o"}, "n and m mean nothing to people"
    torch.testing.assert_close(seen["h"], seen["o"] * seen["c"])
    torch.testing.assert_close(seen["i"] + seen["f"], torch.ones(T, B, H, dtype=torch.float64))
    # c / n is a mean of tanh(z), weighted by the shares: its steps stay within ±1.
    assert seen["c"].abs().max() < 1
