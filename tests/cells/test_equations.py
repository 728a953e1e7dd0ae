"""Each step is the equations of its paper or of torch.nn, and its gradients are those of finite differences."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from charlm.layers import Activations
from tests.cells.measure import Case, assert_equal_runs, random_input, random_state, run, seeded

Weights = dict[str, Tensor]
Mask = Callable[[Tensor], Tensor]


# The papers. `dropped` is state dropout; biases and weights have torch's shapes.


def lstm(cell: Any, w: Weights, dropped: Mask, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    """Ba et al. 2016, with the layer norm of the sum of both products and of each gate separately."""
    a = x @ w["weight_ih"].t() + w["bias_ih"] + dropped(h) @ w["weight_hh"].t() + w["bias_hh"]
    i, f, g, o = a.chunk(4, -1)
    if cell.kind == "lstm":
        gains = zip((i, f, g, o), w["weight_ln_gates"], w["bias_ln_gates"], strict=True)
        i, f, g, o = (F.layer_norm(a, a.shape[-1:], gain, bias) for a, gain, bias in gains)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    normalized = F.layer_norm(c, c.shape[-1:], w["weight_ln_cell"], w["bias_ln_cell"]) if cell.kind == "lstm" else c
    return o.sigmoid() * normalized.tanh(), c


def rhn(cell: Any, w: Weights, dropped: Mask, x: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    """Zilly et al. 2017, (6) to (9)."""
    from_input: Any = x @ w["weight_ih"].t()
    for weights, bias in zip(w["weight_hh"], w["bias_hh"], strict=True):
        h, t, *carry = (from_input + dropped(s) @ weights.t() + bias).split(s.shape[1], -1)
        s = h.tanh() * t.sigmoid() + s * (carry[0].sigmoid() if carry else 1 - t.sigmoid())
        from_input = 0
    return (s,)


def slstm(
    cell: Any, w: Weights, dropped: Mask, x: Tensor, h: Tensor, c: Tensor, n: Tensor, m: Tensor
) -> tuple[Tensor, ...]:
    """Beck et al. 2024, (8) to (15), with c and n free of the scale e^−m."""
    i, f, z, o = (x @ w["weight_ih"].t() + dropped(h) @ w["weight_hh"].t() + w["bias"]).chunk(4, -1)
    forget = f.exp() if cell.forget_gate == "exponential" else f.sigmoid()
    c = forget * c * m.exp() + i.exp() * z.tanh()
    n = forget * n * m.exp() + i.exp()
    m = torch.maximum(forget.log() + m, i).detach()
    return o.sigmoid() * c / n, c * (-m).exp(), n * (-m).exp(), m


def positive(cell: Any, a: Tensor) -> Tensor:
    """Feng et al. 2024: the candidate, or g of it."""
    return torch.where(a >= 0, a + 0.5, a.sigmoid()) if cell.positive else a


def mingru(cell: Any, w: Weights, dropped: Mask, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    z, candidate = F.linear(x, w["weight_ih"], w["bias_ih"]).chunk(2, -1)
    return ((1 - z.sigmoid()) * h + z.sigmoid() * positive(cell, candidate),)


def minlstm(cell: Any, w: Weights, dropped: Mask, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
    f, i, candidate = F.linear(x, w["weight_ih"], w["bias_ih"]).chunk(3, -1)
    f, i = f.sigmoid(), i.sigmoid()
    return (f / (f + i) * h + i / (f + i) * positive(cell, candidate),)


def sru(cell: Any, w: Weights, dropped: Mask, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    read = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w["weight_ln_input"] if cell.normalize else x
    u, f, r, *highway = F.linear(read, w["weight_ih"]).split(h.shape[1], -1)
    v_f, v_r = w["peephole"].chunk(2)
    b_f, b_r = w["bias"].chunk(2)
    f = torch.sigmoid(f + v_f * c + b_f)
    r = torch.sigmoid(r + v_r * c + b_r)
    c = f * c + (1 - f) * u
    return r * c + (1 - r) * (highway or [x])[0] * math.sqrt(1 + math.exp(cell.highway_bias) * 2), c


def mogrifier(cell: Any, w: Weights, dropped: Mask, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    def matrix(name: str, index: int) -> Tensor:
        return w[f"{name}_left"][index] @ w[f"{name}_right"][index] if cell.rank else w[name][index]

    for i in range(cell.rounds):
        if i % 2 == 0:
            x = 2 * torch.sigmoid(dropped(h) @ matrix("weight_q", i // 2).t()) * x
        else:
            h = 2 * torch.sigmoid(x @ matrix("weight_r", i // 2).t()) * h
    return lstm(cell, w, dropped, x, h, c)


PAPERS: list[tuple[Case, Callable[..., Any]]] = [
    (Case("lstm", {"layer_norm": True}), lstm),
    (Case("rhn"), rhn),
    (Case("rhn", {"couple_gates": False}), rhn),
    (Case("slstm"), slstm),
    (Case("slstm", {"forget_gate": "exponential"}), slstm),
    *((Case("mingru", {"positive": value}), mingru) for value in (False, True)),
    *((Case("minlstm", {"positive": value}), minlstm) for value in (False, True)),
    (Case("sru", {"highway_bias": -1.0}), sru),
    (Case("sru", {"normalize": False}), sru),
    *((Case("mogrifier", {"rounds": rounds}), mogrifier) for rounds in (0, 1, 2, 5)),
    (Case("mogrifier", {"rank": 2}), mogrifier),
]


@pytest.mark.parametrize(("case", "step"), PAPERS, ids=lambda value: str(value) if isinstance(value, Case) else "")
@pytest.mark.parametrize(("inputs", "training"), [(3, True), (3, False), (4, False)])
def test_a_layer_follows_its_paper(case, step, inputs, training):
    """State dropout acts on what enters the recurrent products; zoneout mixes old and new states after the step."""
    stack = case.build(inputs, 4, state=0.4, zoneout=0.3).train(training)
    weights = {name.removesuffix("_l0"): tensor for name, tensor in stack.named_parameters()}

    def by_paper(x, state):
        states = tuple(tensor[0] for tensor in state)
        given = stack.layer_call(0, states, len(x), stack.options(training), training=training).given
        [mask] = given.get("mask", torch.ones(1))
        outputs = []
        for t, x_BI in enumerate(x):
            after = step(stack.cell, weights, lambda v: v * mask, x_BI, *states)
            shares = given["zoneout"][t % len(given["zoneout"])].chunk(len(states), -1)
            mixed = zip(shares, states, after, strict=True)
            states = tuple(share * old + (1 - share) * new for share, old, new in mixed)
            outputs.append(states[0])
        return torch.stack(outputs), tuple(tensor[None] for tensor in states)

    x, state = random_input(stack, 5, 3), random_state(stack, 3)
    x = 8 * x if case.kind == "slstm" else x  # exponential gates of many sizes
    found, expected = (run(seeded(forward), stack, x, state) for forward in (stack.forward_reference, by_paper))
    if case.kind == "slstm":  # the gradients of its internal states depend on their scale, see test_gradients
        found, expected = ({name: one[name] for name in ("y", *stack.state_names)} for one in (found, expected))
    assert_equal_runs(found, expected, tolerance=1e-11)


TORCHS: list[tuple[Case, Callable[..., nn.RNNBase]]] = [
    (Case("rnn"), nn.RNN),
    (Case("rnn", {"nonlinearity": "relu"}), nn.RNN),
    (Case("lstm", {"forget_bias": None}), nn.LSTM),
    (Case("gru"), nn.GRU),
]


@pytest.mark.parametrize(("case", "theirs"), TORCHS, ids=lambda value: str(value) if isinstance(value, Case) else "")
def test_the_cells_of_torch(case, theirs):
    """Same parameters, same start, same numbers; weights go from one to the other."""
    options = {name: value for name, value in case.options.items() if name == "nonlinearity"}
    torch.manual_seed(1)
    stack = case.start(3, 17, 2)
    torch.manual_seed(1)
    module = theirs(3, 17, 2, **options)
    found, expected = stack.state_dict(), module.state_dict()
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in expected)

    stack, module = case.build(3, 17, 2), module.double()
    module.load_state_dict(stack.state_dict())
    x, state = random_input(stack, 5, 4), random_state(stack, 4)
    contiguous = tuple(tensor.contiguous() for tensor in state)
    y, last = module(x, contiguous[0] if len(contiguous) == 1 else contiguous)
    expected = {"y": y} | dict(zip(stack.state_names, last if isinstance(last, tuple) else (last,), strict=True))
    for forward in (stack, stack.forward_reference):
        found = run(forward, stack, x, state)
        assert_equal_runs({name: found[name] for name in expected}, expected)


def test_recorded_activations_obey_the_equations():
    """Of every step of a window, also where a stream is reset."""
    stack = Case("lstm").start(3, 4).double()
    x_TBI, resets_TB = torch.randn(5, 2, 3, dtype=torch.float64), torch.eye(5, 2).bool()
    activations = Activations(list)
    y_TBH, _ = stack.forward_reference(x_TBI, None, resets_TB, activations=[activations])
    v = {name: torch.stack(steps) for (name, _), steps in activations.items()}
    assert torch.equal(v["h"], y_TBH)
    torch.testing.assert_close(v["h"], v["o"] * v["c"].tanh())
    before = v["c"].roll(1, 0) * ~resets_TB[..., None]
    before[0] = 0
    torch.testing.assert_close(v["c"], v["f"] * before + v["i"] * v["g"])
