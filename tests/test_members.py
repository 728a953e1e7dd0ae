"""A model of several members: each learns as if alone, and they predict together."""

import copy
import math

import pytest
import torch

from charlm.config import parse_config
from charlm.config.optimizers import AdamWConfig
from charlm.model import build_model
from charlm.training.optimizer import build_optimizer, clip_gradients, step_and_average

V, H, M, B = 7, 5, 3, 2
SIZES = {"cell": {"kind": "lstm", "hidden": H}, "layers": 2, "embedding": 4}


def model_of(members=M, **options):
    torch.manual_seed(0)
    return build_model(parse_config({"model": {**SIZES, "members": members, **options}}, "test").model, V)


def ids(*shape, seed=0):
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("cell", "scored_steps"), [("lstm", None), ("gru", 1)])  # two state tensors, and one
def test_each_member_learns_as_if_alone(cell, scored_steps):
    sizes = {"cell": {"kind": cell, "hidden": H}}
    model, x, y = model_of(**sizes), ids(6, B), ids(6, B, seed=1)
    options = {"activation_penalty": 0.3, "change_penalty": 0.2, "scored_steps": scored_steps}
    state = tuple(torch.randn(zeros.shape) for zeros in model.initial_state(B))
    loss = model.window_loss(x, y, state, **options)
    loss.objective.backward()
    S = len(state) // M
    assert [part.shape for part in loss.state] == [(2, B, H)] * S * M
    nats = []
    for m, member in enumerate(model.members):
        single = model_of(1, **sizes)
        single.load_state_dict(member.state_dict())
        own = single.window_loss(x, y, state[m * S : (m + 1) * S], **options)
        own.objective.backward()
        nats.append(own.cross_entropy)
        for parameter, wanted in zip(member.parameters(), single.parameters(), strict=True):
            assert torch.equal(parameter.grad, wanted.grad)
        assert all(map(torch.equal, loss.state[m * S : (m + 1) * S], own.state))
    assert loss.cross_entropy.item() == pytest.approx(sum(nats).item() / M, rel=1e-6)


def test_members_have_weights_and_dropout_of_their_own():
    model = model_of(dropout=0.5)
    first, second, _ = model.members
    assert not torch.equal(first.decoder.weight, second.decoder.weight)
    second.load_state_dict(first.state_dict())
    one, two, _ = model.train().features(ids(4, B))[0].chunk(M, -1)
    assert not torch.equal(one == 0, two == 0)


def test_probabilities_are_the_mean_of_the_members():
    model, x = model_of().eval(), ids(9, B)
    with torch.no_grad():
        for member in model.members:
            member.decoder.weight.mul_(8)  # so that they differ in what they predict
    logits, _ = model(x)
    wanted = torch.stack([member.double()(x)[0].softmax(-1) for member in model.members]).mean(0).log()
    torch.testing.assert_close(logits.double(), wanted, rtol=0, atol=4e-6)


def test_lines_begin_from_the_zero_state_in_every_member():
    model, x = model_of().eval(), ids(6, 1)
    lines = copy.deepcopy(model)
    lines.reset_id = 0
    x[3] = 0
    assert (lines.reads_records, model.reads_records) == (True, False)
    torch.testing.assert_close(lines(x)[0][3:], model(x[3:])[0], rtol=0, atol=1e-6)
    assert not torch.allclose(model(x)[0][3:], model(x[3:])[0])


def test_each_member_is_clipped_by_its_own_norm():
    config = AdamWConfig(name="adamw", clip_value=0.5, clip_norm=0.25)
    model = model_of()
    singles = copy.deepcopy(model.members)
    for scale, member, single in zip((0.01, 1.0, 5.0), model.members, singles, strict=True):
        for parameter, other in zip(member.parameters(), single.parameters(), strict=True):
            parameter.grad = scale * torch.randn(parameter.shape)
            other.grad = parameter.grad.clone()
    optimizer = build_optimizer(model, config)
    rates = torch.tensor([0.01, 0.0], dtype=torch.float64)
    norm, scale = clip_gradients(optimizer, config, model.clipped_together())
    step_and_average(optimizer, {}, rates, scale)
    squares = 0.0
    for member, single in zip(model.members, singles, strict=True):
        step = build_optimizer(single, config)
        own_norm, scale = clip_gradients(step, config)
        squares += own_norm.item() ** 2
        step_and_average(step, {}, rates, scale)
        for parameter, wanted in zip(member.parameters(), single.parameters(), strict=True):
            torch.testing.assert_close(parameter, wanted, rtol=1e-5, atol=1e-7)
    assert norm.item() == pytest.approx(math.sqrt(squares / M), rel=1e-5)
