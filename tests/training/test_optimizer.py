"""Learning rate schedules, optimizers, clipping."""

import math
import sys

import pytest
import torch
from torch import nn

from charlm.config import parse_config
from charlm.model import build_model
from charlm.training.optimizer import (
    _CLASSES,
    build_optimizer,
    clip_gradients,
    describe_treatment,
    learning_rate,
    orthogonal,
)


def optimizer_config(**options):
    return parse_config({"optimizer": {"name": "sgd", "lr": 2.0, "clip_norm": 0, **options}}, "test").optimizer


COSINE, LINEAR = ({"name": name, "final_fraction": 0.1} for name in ("cosine", "linear"))


@pytest.mark.parametrize(
    ("schedule", "progress", "rates"),
    [
        ({"name": "constant"}, "progress", [2, 2, 2, 2]),
        (COSINE, "progress", [2, 2 * (0.55 + 0.45 * math.cos(math.pi / 4)), 2 * 0.55, 0.2]),
        (LINEAR, "progress", [2, 2 * 0.775, 2 * 0.55, 0.2]),
        # char-rnn's and the RHN paper's staircase: after N epochs each further epoch multiplies the rate once more.
        ({"name": "step", "factor": 0.5, "after_epochs": 2}, "epochs", [2, 2, 1, 0.5, 0.25]),
        ({"name": "linear", "warmup_steps": 4, "final_fraction": 0}, "step", [0.5, 0.9, 1.2, 1.4, 1.2, 1.0]),
    ],
)
def test_schedules(schedule, progress, rates):
    """By the share of the run, by epochs, and by steps of a tenth of the run, of which the first four are a warmup."""
    config = optimizer_config(schedule=schedule)
    found = []
    for number in range(len(rates)):
        share = {"progress": (0, 0.25, 0.5, 1)[number % 4], "epochs": 0.0, "step": number / 10}[progress]
        step, epochs = number * (progress == "step"), number * (progress == "epochs")
        found.append(learning_rate(config, step=step, epochs=epochs, share_done=share))
    assert found == pytest.approx(rates)


@pytest.mark.parametrize("name", _CLASSES)
def test_steps_are_torchs_without_the_import_of_dynamo(name, monkeypatch):
    """The eager classes step as torch's own do, without torch._dynamo."""
    config = optimizer_config(name=name, lr=0.1)
    theirs = getattr(torch.optim, type(build_optimizer(nn.Linear(2, 2), config)).__name__)
    parameters = [nn.Parameter(torch.arange(6.0).view(2, 3).clone()) for _ in range(2)]
    eager = type(build_optimizer(nn.Linear(2, 2), config))
    before = theirs([parameters[1]], lr=0.1)
    for _ in range(3):
        parameters[1].grad = torch.ones(2, 3)
        before.step()
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)  # an import fails
    optimizer = eager([parameters[0]], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        parameters[0].grad = torch.ones(2, 3)
        optimizer.step()
    assert parameters[0].tolist() == parameters[1].tolist() != [[0, 1, 2], [3, 4, 5]]


def test_options_reach_the_optimizer_and_biases_and_gains_do_not_decay():
    config = optimizer_config(momentum=0.5, weight_decay=0.1)
    model = model_with({"kind": "lstm", "hidden": 4, "layer_norm": True}, layers=1)
    optimizer = build_optimizer(model, config)
    assert [optimizer.defaults[name] for name in ("momentum", "lr")] == [0.5, 2.0]
    names = {id(p): name for name, p in model.named_parameters()}
    decayed, others = ({names[id(p)] for p in group["params"]} for group in optimizer.param_groups)
    assert decayed == {"embedding.weight", "layers.weight_ih_l0", "layers.weight_hh_l0", "decoder.weight"}
    assert decayed | others == set(names.values())
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


OWN = """
from charlm.cells import Cell, sigmoid, tanh

class Own(Cell):
    names: str = ""
    states = ("h", "c")

    def step(self, p, x, h, c):
        W, R, S, down, up, b, v = self.names.split()
        i, f, g, o = p.product(W, x, 4) + p.product(R, h, 4) + p.vector(b, 4)
        c = sigmoid(f + p.vector(v) * c) * c + sigmoid(i) * tanh(g + p.product(S, h, index=1, of=2))
        return sigmoid(o + p.product(up, p.product(down, h, size=3))) * tanh(c), c
"""
NAMES = "weight_ih weight_hh weight_hh_deep weight_hh_down weight_hh_up bias weight_hh_peep", "W U bias_S D beta b leak"


@pytest.mark.parametrize("name", ["muon", "adamw", "sgd"])
def test_a_parameter_is_treated_by_what_it_is_whatever_its_name(trainer_of, tmp_path, name):
    """Vectors do not decay; Muon takes matrices that multiply states, also of low rank and in stacks, gate by gate."""
    (tmp_path / "own.py").write_text(OWN)

    def trained(names):
        cell = {"kind": f"{tmp_path}/own.py:Own", "hidden": 8, "names": names}
        optimizer = {"name": name, "lr": 0.01, "weight_decay": 0.3}
        trainer = trainer_of(model={"cell": cell, "layers": 2, "embedding": 5}, optimizer=optimizer)
        for _ in range(3):
            trainer.update()
        return trainer

    first, second = map(trained, NAMES)
    for ours, theirs in zip(first.parameters, second.parameters, strict=True):
        assert torch.equal(ours, theirs)
    decayed = {"muon": "W_l0, beta", "adamw": "W, U, bias_S, D, beta", "sgd": "W, U, bias_S, D, beta"}[name]
    rule = name.replace("muon", "adamw")
    assert describe_treatment(second.optimizer, name) == (
        f"{rule}, decay 0.3: embedding.weight, {decayed}, decoder.weight; {rule}, no decay: b, leak, decoder.bias"
        + ("; muon, decay 0.3: U, bias_S, D, W_l1…" if name == "muon" else "")
    )


def muon_and(model, **options):
    return build_optimizer(model, parse_config({"optimizer": {"name": "muon", **options}}, "test").optimizer)


def model_with(cell, layers=2):
    torch.manual_seed(0)
    return build_model(parse_config({"model": {"cell": cell, "layers": layers, "embedding": 5}}, "test").model, 7)


@pytest.mark.parametrize("kind", ["lstm", "rhn"])
def test_muon_takes_the_matrices_between_states_and_adamw_the_rest(kind):
    model = model_with({"kind": kind, "hidden": 8})
    reference = model_with({"kind": kind, "hidden": 8})
    muon = muon_and(model, lr=1e-2)
    adamw = build_optimizer(reference, parse_config({"optimizer": {"lr": 1e-2}}, "test").optimizer)
    for each in (model, reference):
        torch.manual_seed(1)
        for parameter in each.parameters():
            parameter.grad = torch.randn_like(parameter)
    muon.step()
    adamw.step()
    expected = dict(reference.named_parameters())
    other = {name for name, p in model.named_parameters() if not torch.allclose(p, expected[name], rtol=0, atol=1e-7)}
    assert other == {"layers.weight_hh_l0", "layers.weight_hh_l1", "layers.weight_ih_l1"}


def test_muon_is_torchs_gate_by_gate():
    model = model_with({"kind": "gru", "hidden": 48}, layers=1)
    weight = model.layers.get_parameter("weight_hh_l0")
    blocks = [torch.nn.Parameter(block.clone()) for block in weight.detach().view(3, 48, 48)]
    theirs = torch.optim.Muon(
        blocks, lr=0.1, weight_decay=0.01, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw"
    )
    ours = muon_and(model, lr=0.1, weight_decay=0.01)
    before = weight.detach().clone()
    for _ in range(3):
        gradient = torch.randn_like(weight)
        weight.grad = gradient.clone()
        for block, part in zip(blocks, gradient.view(3, 48, 48), strict=True):
            block.grad = part.clone()
        theirs.step()
        ours.step()
    difference = (torch.cat(blocks) - weight).norm() / (weight - before).norm()
    assert difference < 0.02  # theirs takes its products in bfloat16


def test_muon_decays_its_matrices_at_the_scheduled_rate():
    """As it would at that rate from the first; without a gradient nothing else moves them."""
    stepped = []
    for lr, gradient in ((0.1, 0.0), (0.01, 1.0), (1.0, 1.0)):
        model = model_with({"kind": "gru", "hidden": 8}, layers=1)
        before = model.layers.get_parameter("weight_hh_l0").detach().clone()
        muon = muon_and(model, lr=lr, weight_decay=0.5)
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.grad = gradient * torch.randn_like(parameter)
        for group in muon.param_groups:
            group["lr"] = 0.1
        muon.step()
        stepped.append(model)
    torch.testing.assert_close(stepped[0].layers.get_parameter("weight_hh_l0"), before * 0.95)
    for first, second in zip(stepped[1].parameters(), stepped[2].parameters(), strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)


def test_a_nearly_orthogonal_matrix_keeps_the_singular_vectors():
    torch.manual_seed(0)
    blocks = torch.randn(2, 16, 16) * torch.tensor([1e-3, 1e3]).view(2, 1, 1)
    found = orthogonal(blocks)
    left, _, right = torch.linalg.svd(blocks)
    stretched = left.mT @ found @ right.mT
    lengths = stretched.diagonal(dim1=1, dim2=2)
    assert (stretched - torch.diag_embed(lengths)).abs().max() < 1e-4
    assert 0.3 < lengths.min() < lengths.max() < 1.3
    assert lengths.median() > 0.65
    assert torch.equal(orthogonal(torch.zeros(1, 4, 4)), torch.zeros(1, 4, 4))


@pytest.fixture(params=[False, True], ids=["in place", "fused"])
def clip(request):
    """Clips gradients, makes a step of SGD, and returns the norm and the steps, which are the clipped gradients."""

    def clipped(*gradients, **options):
        parameters = [torch.zeros(len(gradient), requires_grad=True) for gradient in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = torch.tensor(gradient)
        optimizer = torch.optim.SGD(parameters, lr=1.0, fused=request.param)
        norm = clip_gradients(optimizer, optimizer_config(**options)).item()
        optimizer.step()
        return norm, [(-parameter.detach()).tolist() for parameter in parameters]

    return clipped


@pytest.mark.parametrize(
    ("gradients", "options", "norm", "steps", "rel"),
    [
        ([[3.0], [0.0, 4.0]], {"clip_norm": 1.0}, 5.0, [[0.6], [0.0, 0.8]], 1e-5),  # all are scaled by the same
        ([[0.3, 0.4]], {"clip_norm": 1.0}, 0.5, [[0.3, 0.4]], 1e-7),
        ([[-30.0, 4.0, 3.0]], {"clip_value": 4.0}, math.sqrt(925), [[-4.0, 4.0, 3.0]], 0),
        # By value first, then by norm.
        ([[-30.0, 4.0]], {"clip_value": 3.0, "clip_norm": 0.3}, math.sqrt(916), [[-0.3 / 2**0.5, 0.3 / 2**0.5]], 1e-4),
        ([[100.0]], {}, 100.0, [[100.0]], 0),
    ],
)
def test_clipping_returns_the_norm_before_it(clip, gradients, options, norm, steps, rel):
    found, clipped = clip(*gradients, **options)
    assert found == pytest.approx(norm)
    for step, expected in zip(clipped, steps, strict=True):
        assert step == pytest.approx(expected, rel=rel, abs=0)
