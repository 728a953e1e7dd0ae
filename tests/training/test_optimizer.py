"""Learning rate schedules, optimizers, clipping."""

import math

import pytest
import torch
from torch import nn

from charlm.config import parse_config
from charlm.model import build_model
from charlm.training.optimizer import (
    build_optimizer,
    clip_gradients,
    describe_treatment,
    learning_rate,
    step_and_average,
)


def optimizer_config(**options):
    return parse_config({"optimizer": {"name": "sgd", "lr": 2.0, "clip_norm": 0, **options}}, "test").optimizer


COSINE, LINEAR = ({"name": name, "final_fraction": 0.1} for name in ("cosine", "linear"))
STEP = {"name": "step", "factor": 0.5, "after_epochs": 2}
WARMUP = {"name": "linear", "warmup_steps": 4, "final_fraction": 0}


@pytest.mark.parametrize(
    ("schedule", "step", "epochs", "share", "rate"),
    [
        ({"name": "constant"}, 7, 3, 0.9, 2),
        (COSINE, 0, 0, 0.25, 2 * (0.55 + 0.45 * math.cos(math.pi / 4))),
        (COSINE, 0, 0, 1, 0.2),
        (LINEAR, 0, 0, 0.25, 2 * 0.775),
        # char-rnn's and the RHN paper's staircase: after N epochs each further epoch multiplies the rate once more.
        (STEP, 0, 1, 0, 2),
        (STEP, 0, 4, 0, 0.25),
        (WARMUP, 0, 0, 0, 0.5),
        (WARMUP, 1, 0, 0.1, 0.9),
    ],
)
def test_schedules(schedule, step, epochs, share, rate):
    config = optimizer_config(schedule=schedule)
    assert learning_rate(config, step=step, epochs=epochs, share_done=share) == pytest.approx(rate)


OWN = """
from charlm.cells import Cell, sigmoid, tanh

class Own(Cell):
    states = ("h", "c")

    def step(self, p, x, h, c):
        i, f, g, o = p.product("W", x, 4) + p.product("U", h, 4) + p.vector("b", 4)
        c = sigmoid(f + p.vector("leak") * c) * c + sigmoid(i) * tanh(g + p.product("bias_S", h, index=1, of=2))
        return sigmoid(o + p.product("beta", p.product("D", h, size=3))) * tanh(c), c
"""


@pytest.mark.usefixtures("no_kernels")
def test_a_parameter_is_treated_by_what_it_is_whatever_its_name(trainer_of, tmp_path):
    """Vectors do not decay; Muon takes matrices that multiply states, also of low rank and in stacks."""
    (tmp_path / "own.py").write_text(OWN)
    model = {"cell": {"kind": f"{tmp_path}/own.py:Own", "hidden": 8}, "layers": 2, "embedding": 5}
    optimizer = trainer_of(model=model, optimizer={"name": "muon", "lr": 0.01, "weight_decay": 0.3}).optimizer
    assert describe_treatment(optimizer, "muon").split("; ") == [
        "adamw, decay 0.3: embedding.weight, W_l0, beta, decoder.weight",
        "adamw, no decay: b, leak, decoder.bias",
        "muon, decay 0.3: U, bias_S, D, W_l1…",
    ]


def test_options_reach_the_optimizer():
    optimizer = build_optimizer(nn.Linear(2, 2), optimizer_config(momentum=0.5))
    assert [optimizer.defaults[name] for name in ("momentum", "lr")] == [0.5, 2.0]


def test_muon_is_torchs_gate_by_gate_at_the_scheduled_rate():
    model = build_model(parse_config({"model": {"cell": {"kind": "gru", "hidden": 48}}}, "test").model, 7)
    weight = model.layers.get_parameter("weight_hh_l0")
    before = weight.detach().clone()
    blocks = [nn.Parameter(block.clone()) for block in before.view(3, 48, 48)]
    theirs = torch.optim.Muon(blocks, lr=0.1, weight_decay=0.5, adjust_lr_fn="match_rms_adamw")
    ours = build_optimizer(model, optimizer_config(name="muon", lr=3.0, weight_decay=0.5))
    for _ in range(3):
        gradient = torch.randn_like(weight)
        weight.grad = gradient.clone()
        for block, part in zip(blocks, gradient.view(3, 48, 48), strict=True):
            block.grad = part.clone()
        theirs.step()
        step_and_average(ours, {}, torch.tensor([0.1, 0.0], dtype=torch.float64), None)
    difference = (torch.cat(blocks) - weight).norm() / (weight - before).norm()
    assert difference < 0.02  # theirs takes its products in bfloat16


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("gradients", "options", "norm", "clipped", "rel"),
    [
        ([[3.0], [0.0, 4.0]], {"clip_norm": 1.0}, 5.0, [[0.6], [0.0, 0.8]], 1e-5),  # all are scaled by the same
        ([[0.3, 0.4]], {"clip_norm": 1.0}, 0.5, [[0.3, 0.4]], 1e-7),
        # By value first, then by norm.
        ([[-30.0, 4.0]], {"clip_value": 3.0, "clip_norm": 0.3}, math.sqrt(916), [[-0.3 / 2**0.5, 0.3 / 2**0.5]], 1e-4),
        ([[100.0]], {}, 100.0, [[100.0]], 0),
    ],
)
def test_clipping_returns_the_norm_before_it(gradients, options, norm, clipped, rel, fused):
    """A step of SGD from zero shows the clipped gradients: fused ones are clipped by norm in the step."""
    parameters = [torch.zeros(len(gradient), requires_grad=True) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = torch.tensor(gradient)
    optimizer = torch.optim.SGD(parameters, lr=1.0, fused=fused)
    found, scale = clip_gradients(optimizer, optimizer_config(**options))
    assert found.item() == pytest.approx(norm)
    step_and_average(optimizer, {}, torch.tensor([1.0, 0.0], dtype=torch.float64), scale)
    for parameter, gradient in zip(parameters, clipped, strict=True):
        assert (-parameter.detach()).tolist() == pytest.approx(gradient, rel=rel, abs=0)
