"""The kinds against their papers' equations, as a plain loop in PyTorch; outputs, states and gradients."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from charlm.cells import LSTM, SRU, Cell, MinGRU, MinLSTM, Mogrifier
from charlm.layers import RecurrentLayers, as_tuple

Weights = dict[str, Tensor]
T, B, H = 7, 3, 4


def g(a: Tensor) -> Tensor:
    return torch.where(a >= 0, a + 0.5, a.sigmoid())


def mingru(cell: MinGRU, w: Weights, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    z, candidate = F.linear(x, w["weight_ih"], w["bias_ih"]).chunk(2, -1)
    z = z.sigmoid()
    return ((1 - z) * h + z * (g(candidate) if cell.positive else candidate),)


def minlstm(cell: MinLSTM, w: Weights, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    f, i, candidate = F.linear(x, w["weight_ih"], w["bias_ih"]).chunk(3, -1)
    f, i = f.sigmoid(), i.sigmoid()
    return (f / (f + i) * h + i / (f + i) * (g(candidate) if cell.positive else candidate),)


def sru(cell: SRU, w: Weights, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    read = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w["weight_ln_input"] if cell.normalize else x
    u, f, r, *highway = F.linear(read, w["weight_ih"]).split(H, -1)
    v_f, v_r = w["peephole"].chunk(2)
    b_f, b_r = w["bias"].chunk(2)
    f = torch.sigmoid(f + v_f * c + b_f)
    r = torch.sigmoid(r + v_r * c + b_r)
    c = f * c + (1 - f) * u
    return r * c + (1 - r) * (highway or [x])[0] * math.sqrt(1 + math.exp(cell.highway_bias) * 2), c


def mogrifier(cell: Mogrifier, w: Weights, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    def of(name: str, index: int) -> Tensor:
        return w[f"{name}_left"][index] @ w[f"{name}_right"][index] if cell.rank else w[name][index]

    for i in range(cell.rounds):
        if i % 2 == 0:
            x = 2 * torch.sigmoid(h @ of("weight_q", i // 2).t()) * x
        else:
            h = 2 * torch.sigmoid(x @ of("weight_r", i // 2).t()) * h
    gates = F.linear(x, w["weight_ih"], w["bias_ih"]) + F.linear(h, w["weight_hh"], w["bias_hh"])
    i, f, candidate, o = gates.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * candidate.tanh()
    return o.sigmoid() * c.tanh(), c


KINDS: list[tuple[Cell, Callable[..., tuple[Tensor, ...]]]] = [
    (MinGRU(hidden=H), mingru),
    (MinGRU(hidden=H, positive=True), mingru),
    (MinLSTM(hidden=H), minlstm),
    (MinLSTM(hidden=H, positive=True), minlstm),
    (SRU(hidden=H, highway_bias=-1.0), sru),
    (SRU(hidden=H, normalize=False), sru),
    *((Mogrifier(hidden=H, rounds=rounds), mogrifier) for rounds in (0, 1, 2, 5)),
    (Mogrifier(hidden=H, rank=2), mogrifier),
]


@pytest.mark.parametrize(("cell", "step"), KINDS, ids=lambda value: repr(value) if isinstance(value, Cell) else "")
@pytest.mark.parametrize("inputs", [H, 3])
def test_a_layer_follows_its_paper(cell: Any, step: Callable[..., tuple[Tensor, ...]], inputs: int) -> None:
    torch.manual_seed(1)
    layers = RecurrentLayers(cell, inputs).double()
    x, *state = (torch.randn(*shape, H, dtype=torch.float64) for shape in [(T, B), *[(1, B)] * len(cell.states)])
    x = x[..., :inputs].requires_grad_()
    given: list[Tensor] = [x, *(tensor.requires_grad_() for tensor in state), *layers.parameters()]
    found_y, found = layers.forward_reference(x, state[0] if len(state) == 1 else tuple(state))

    weights = {name.removesuffix("_l0"): tensor for name, tensor in layers.named_parameters()}
    states, outputs = tuple(tensor[0] for tensor in state), []
    for x_BI in x:
        states = step(cell, weights, x_BI, *states)
        outputs.append(states[0])
    results = [torch.stack(outputs), *states]
    upstream = [torch.randn_like(tensor) for tensor in results]

    def gradients(of: list[Tensor]) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(of, given, upstream, allow_unused=True)

    all_found = [found_y, *(tensor[0] for tensor in as_tuple(found))]
    for one, other in zip([*all_found, *gradients(all_found)], [*results, *gradients(results)], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_a_mogrifier_of_no_rounds_is_an_lstm() -> None:
    one, other = RecurrentLayers(Mogrifier(hidden=4, rounds=0), 5, 2), RecurrentLayers(LSTM(hidden=4), 5, 2)
    one.load_state_dict(other.state_dict())  # which refuses other names or shapes
    x = torch.randn(6, 2, 5)
    assert torch.equal(one.forward_reference(x)[0], other.forward_reference(x)[0])


def test_closed_gates_of_a_minlstm_share_out_the_state() -> None:
    """Both gates round to 0 in single precision, their quotients do not."""
    layers = RecurrentLayers(MinLSTM(hidden=1), 1)
    with torch.no_grad():
        layers.get_parameter("bias_ih_l0").copy_(torch.tensor([-200.0, -200.0, 0.0]))
        layers.get_parameter("weight_ih_l0").zero_()
        y, _ = layers.forward_reference(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    assert y.item() == 0.5


def test_where_peepholes_and_gates_of_an_sru_start() -> None:
    for reset in (lambda layers: None, lambda layers: layers.init_uniform_(0.0)):
        layers = RecurrentLayers(SRU(hidden=500, highway_bias=-2.0), 3)
        reset(layers)
        peephole, bias, gain = (layers.get_parameter(f"{name}_l0") for name in ("peephole", "bias", "weight_ln_input"))
        assert peephole.var().item() == pytest.approx(0.5, rel=0.2)
        assert bias.tolist() == [0.0] * 500 + [-2.0] * 500
        assert gain.tolist() == [1.0] * 3


def test_orthogonal_matrices_of_a_mogrifier() -> None:
    layers = RecurrentLayers(Mogrifier(hidden=4), 3)
    layers.init_orthogonal_()
    for name, columns in (("weight_q", 3), ("weight_hh", 4)):
        for block in layers.get_parameter(f"{name}_l0").view(-1, columns, 4):
            torch.testing.assert_close(block @ block.t(), torch.eye(columns))
