"""What the reference loop computes: a cell's step, and what the paper says where torch.nn has no such cell."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from charlm.cells import cell as c
from charlm.cells.cell import Cell, Parameters
from charlm.layers import RecurrentLayers
from charlm.layers.on_tensors import step_by_step
from tests.cells.measure import CASES, Case, as_tuple, assert_equal_runs, random_input, random_state, run

Array = np.ndarray
P = dict[str, Array]


class Everything(Cell):
    """Calls all that a step may call; some functions by torch's names."""

    states: ClassVar = ("h", "s")
    kind: Literal["everything"] = "everything"

    def step(self, p: Parameters, x: Any, h: Any, s: Any) -> Any:
        a, b = p.product("both", x, 2) + p.vector("bias", 2) * p.product("one", h)
        for k in range(2):
            a = c.relu(a) - 0.5 * p.product("deep", b, index=k, of=2) / (1 + c.exp(b)) + p.vector("row", index=k, of=2)
        few = p.product("down", c.tanh(s), size=3) + p.vector("few", size=3)
        a, b = p.layer_norm(p.product("up", c.rms_normalize(few), 2), "rows", of=2) + c.normalize(a) * c.sigmoid(-b)
        h = torch.lerp(h, c.minimum(c.maximum(a, -0.5), b), c.sqrt(c.softplus(h)))
        bound = p.vector("bound")
        s = c.where(s > bound, c.log(c.softplus(s) + 1), (c.log_sigmoid(h) + torch.tanh(bound)) * c.stop_gradient(s))
        return h, s + p.product("back", p.product("in", s, size="I") * x)


@pytest.mark.parametrize("inputs", [3, 4], ids=["I ≠ H", "I = H"])
@pytest.mark.parametrize("case", [*CASES, None], ids=lambda case: str(case or "everything"))
def test_the_reference_computes_the_step(case: Case | None, inputs: int) -> None:
    stack = case.build(inputs, 4) if case else RecurrentLayers(Everything(hidden=4), inputs).double()

    def by_step(x_TBI: Tensor, state: Any) -> tuple[Tensor, Any]:
        y_TBH, last = step_by_step(stack, x_TBI, tuple(tensor[0] for tensor in as_tuple(state)))
        return y_TBH, tuple(tensor[None] for tensor in last)

    x, state = random_input(stack, 5, 3), random_state(stack, 3)
    assert_equal_runs(run(stack.forward_reference, stack, x, state), run(by_step, stack, x, state))


def logistic(a: Array) -> Array:
    return 1 / (1 + np.exp(-a))


def normalized(a: Array, gain: Array, bias: Array) -> Array:
    return gain * (a - a.mean(1, keepdims=True)) / np.sqrt(a.var(1, keepdims=True) + 1e-5) + bias


def lstm(p: P, x: Array, dropped: Callable[[Array], Array], h: Array, c: Array) -> tuple[Array, ...]:
    """Ba et al. 2016, of the sum of both products and of each gate separately."""
    a = x @ p["weight_ih"].T + p["bias_ih"] + dropped(h) @ p["weight_hh"].T + p["bias_hh"]
    i, f, g, o = map(normalized, np.split(a, 4, axis=1), p["weight_ln_gates"], p["bias_ln_gates"])
    c = logistic(f) * c + logistic(i) * np.tanh(g)
    return logistic(o) * np.tanh(normalized(c, p["weight_ln_cell"], p["bias_ln_cell"])), c


def rhn(p: P, x: Array, dropped: Callable[[Array], Array], s: Array) -> tuple[Array, ...]:
    """Zilly et al. 2017, (6) to (9)."""
    from_input = x @ p["weight_ih"].T
    for weights, bias in zip(p["weight_hh"], p["bias_hh"], strict=True):
        h, t, *c = np.split(from_input + dropped(s) @ weights.T + bias, len(bias) // s.shape[1], axis=1)
        s = np.tanh(h) * logistic(t) + s * (logistic(c[0]) if c else 1 - logistic(t))
        from_input = 0
    return (s,)


def slstm(
    p: P, x: Array, dropped: Callable[[Array], Array], h: Array, c: Array, n: Array, m: Array, forget: Any = logistic
) -> tuple[Array, ...]:
    """Beck et al. 2024, (8) to (15), with c and n free of the scale e^−m."""
    i, f, z, o = np.split(x @ p["weight_ih"].T + dropped(h) @ p["weight_hh"].T + p["bias"], 4, axis=1)
    c = forget(f) * c * np.exp(m) + np.exp(i) * np.tanh(z)
    n = forget(f) * n * np.exp(m) + np.exp(i)
    m = np.maximum(np.log(forget(f)) + m, i)
    return logistic(o) * c / n, c * np.exp(-m), n * np.exp(-m), m


PAPERS = [
    pytest.param(Case("lstm", {"layer_norm": True}), lstm, 2, id="lstm with layer norm"),
    pytest.param(Case("rhn"), rhn, 1, id="rhn"),
    pytest.param(Case("rhn", {"couple_gates": False}), rhn, 1, id="rhn with a learned carry"),
    pytest.param(Case("slstm"), slstm, 1, id="slstm"),
    pytest.param(
        Case("slstm", {"forget_gate": "exponential"}),
        lambda *args: slstm(*args, forget=np.exp),
        1,
        id="slstm with an exponential gate",
    ),
]


@pytest.mark.parametrize(("case", "step", "zoned"), PAPERS)
@pytest.mark.parametrize("training", [True, False])
def test_a_step_follows_the_paper(case: Case, step: Callable[..., Any], zoned: int, training: bool) -> None:
    """State dropout acts on what enters the recurrent products; zoneout mixes old and new states after the step.

    zoned: how many of the states have zoneout, from the first on.
    """
    stack = case.build(3, 4, state_dropout=0.4, zoneout=0.3).train(training)
    x, state = random_input(stack, 3, 6), random_state(stack, 6)
    torch.manual_seed(5)
    call = stack.layer_call(0, stack.split_state(state, 6)[0], steps=3, training=training)
    torch.manual_seed(5)
    y, last = stack.forward_reference(x, state)

    p = {name.removesuffix("_l0"): parameter.detach().numpy() for name, parameter in stack.named_parameters()}
    mask = 1.0 if call.mask_BH is None else call.mask_BH.numpy()
    states = [tensor[0].numpy() for tensor in as_tuple(state)]
    for t in range(3):
        after = step(p, x[t].numpy(), lambda v: v * mask, *states)
        assert call.zoneout_TBS is not None
        kept = np.split(call.zoneout_TBS[t % len(call.zoneout_TBS)].numpy(), len(states), axis=1)
        mixed = [k * old + (1 - k) * new for k, old, new in zip(kept, states, after, strict=True)]
        states = [*mixed[:zoned], *after[zoned:]]
        np.testing.assert_allclose(y[t].detach(), states[0], rtol=1e-12, atol=1e-13)
    for found, expected in zip(as_tuple(last), states, strict=True):
        np.testing.assert_allclose(found[0].detach(), expected, rtol=1e-12, atol=1e-13)
