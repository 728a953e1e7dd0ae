"""The model around the cells: input, dropout, logits, loss."""

import copy
import itertools
import math
from functools import partial

import pytest
import torch

from charlm.cells import CELLS
from charlm.config import parse_config
from charlm.layers.selection import backends
from charlm.model import build_model, parameters_by_part

V, T, B = 7, 5, 3


def config_of(**model):
    return parse_config({"model": model}, "test").model


def model_of(**model):
    torch.manual_seed(0)
    return build_model(config_of(**model), V)


def ids(T=T, B=B, seed=0):
    return torch.randint(V, (T, B), generator=torch.Generator().manual_seed(seed))


@pytest.mark.usefixtures("kernels")
def test_a_tensor_that_does_not_fit_is_refused_by_every_way_to_compute():
    """By each backend, a GPU's loop too, and where characters are generated: kernels would read beyond its end."""
    model = model_of(cell={"kind": "lstm", "hidden": 8}, layers=2, embedding=5).eval()
    layers, inputs, state = model.layers, torch.randn(T, B, 5), model.initial_state(B)
    task = layers.task(training=False)
    ways = [partial(layers.forward_by, way) for name in ("cpu", "meta") for way in backends(task, torch.device(name))]

    def generate(state):
        return model.generator(state) or model(ids(), state)

    for form in (lambda x: x[..., :1], torch.Tensor.double, lambda x: x.to("meta")):
        for full_name, parameter in list(model.named_parameters()):
            place, _, name = full_name.rpartition(".")
            module = model.get_submodule(place)
            setattr(module, name, torch.nn.Parameter(form(parameter.detach())))
            with pytest.raises(ValueError, match="; allowed: "):
                generate(state)
            for way in ways if module is layers else ():
                with pytest.raises(ValueError, match="; allowed: "):
                    way(inputs, None)
            setattr(module, name, parameter)
        for way in (generate, *(partial(way, inputs) for way in ways)):
            with pytest.raises(ValueError, match="; allowed: "):
                way((state[0], form(state[1])))
    with pytest.raises(ValueError, match="; allowed: "):
        model(ids().int())


@pytest.mark.parametrize("kind", CELLS)
def test_zeroed_output_layer_gives_ln_v(kind):
    """Summed over steps and averaged over streams."""
    model = model_of(cell={"kind": kind, "hidden": 8})
    torch.nn.init.zeros_(model.decoder.weight)
    loss = model.window_loss(ids(), ids(seed=1), None)
    assert loss.objective.item() == pytest.approx(T * math.log(V), rel=1e-6)


def test_penalties_of_outputs_that_are_0_have_gradients():
    model = model_of(cell={"kind": "rnn", "hidden": 8})
    model.layers.init_uniform_(0.0)
    model.window_loss(ids(), ids(seed=1), None, activation_penalty=1.0, change_penalty=1.0).objective.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(("scored_steps", "S"), [(None, T), (1, 1)])
def test_penalties_are_mean_squares_times_the_scored_steps(scored_steps, S):
    model = model_of(cell={"kind": "gru", "hidden": 8}, dropout={"output": 0.5})
    x, y = ids(), ids(seed=1)

    def objective(**penalties):
        torch.manual_seed(3)
        return model.window_loss(x, y, None, scored_steps=scored_steps, **penalties)

    plain, penalized = objective(), objective(activation_penalty=2.0, change_penalty=3.0)
    outputs, _ = model.outputs(x)
    torch.manual_seed(3)
    dropped, _ = model.features(x)
    change = ((outputs[1:] - outputs[:-1]) ** 2).mean()
    expected = S * (2.0 * (dropped**2).mean() + 3.0 * change)
    torch.testing.assert_close(penalized.objective - plain.objective, expected)
    assert torch.equal(penalized.cross_entropy, plain.cross_entropy)
    assert torch.equal(plain.cross_entropy, plain.objective)


@pytest.mark.usefixtures("needs_kernels")
@pytest.mark.parametrize(
    ("steps", "scored_steps", "penalties", "dropout"),
    [
        (5, None, (2.0, 3.0), {"output": 0.4}),
        (5, 2, (0.5, 0.0), {"output": 0.4, "variational": True}),
        (4, 4, (0.0, 1.5), {}),
        (1, 1, (2.0, 3.0), {"output": 0.4}),
        (3, 1, (0.0, 0.0), {}),
    ],
)
def test_the_objective_by_kernels_is_that_of_pytorchs_operators(steps, scored_steps, penalties, dropout):
    """In float64 the model takes PyTorch's."""
    single = model_of(cell={"kind": "gru", "hidden": 19}, dropout=dropout)
    double, results = copy.deepcopy(single).double(), []
    options = {"scored_steps": scored_steps, "activation_penalty": penalties[0], "change_penalty": penalties[1]}
    for model in (single, double):
        torch.manual_seed(3)
        loss = model.window_loss(ids()[:steps], ids(seed=1)[:steps], None, **options)
        (3 * loss.objective).backward()
        gradients = [parameter.grad.double() for parameter in model.parameters()]
        results.append([loss.objective.detach().double(), loss.cross_entropy.double(), *gradients])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-6 * float(expected.abs().max()))


def test_a_tied_embedding_of_another_size():
    """Logits W P h + b, in float64; W has the gradients of embedding and logits, and P those of its place."""
    sizes = {"cell": {"kind": "rnn", "hidden": 8}, "embedding": 3}
    tied, free = model_of(**sizes, tie_embeddings=True).double(), model_of(**sizes).double()
    torch.nn.init.uniform_(tied.decoder.bias)
    W, P = tied.decoder.weight.detach(), tied.projection.weight.detach()
    free.load_state_dict({**tied.state_dict(), "decoder.weight": W @ P, "embedding.weight": W}, strict=False)
    torch.testing.assert_close(tied(ids())[0], free(ids())[0])
    torch.testing.assert_close(torch.as_tensor(tied.logit_weights()), W @ P)
    for model in (tied, free):
        model.window_loss(ids(), ids(seed=1), None).objective.backward()
    d_weights_VH = free.decoder.weight.grad
    torch.testing.assert_close(tied.projection.weight.grad, W.t() @ d_weights_VH)
    torch.testing.assert_close(tied.decoder.weight.grad, free.embedding.weight.grad + d_weights_VH @ P.t())
    parts = parameters_by_part(config_of(**sizes, tie_embeddings=True), V)
    assert parts == {"embedding": 0, "layers": 8 * 8 + 8 * 3 + 8 * 2, "logits": 3 * 8 + 3 * V + V}


def test_init_uniform_bounds_weights_and_zeroes_biases():
    model = model_of(cell={"kind": "lstm", "hidden": 32}, embedding=24, tie_embeddings=True, init_uniform=0.05)
    for name, parameter in model.named_parameters():
        if "bias" not in name:
            assert 0.04 < parameter.abs().max().item() <= 0.05, name
    assert model.decoder.bias.abs().max() == 0


@pytest.mark.parametrize("place", ["embedding", "input", "state", "weights", "between_layers", "output"])
@pytest.mark.parametrize("kind", ["lstm", "sru"])
def test_dropout_acts_in_training_only(kind, place):
    model = model_of(cell={"kind": kind, "hidden": 8}, layers=2, dropout={place: 0.5}).eval()
    without = model_of(cell={"kind": kind, "hidden": 8}, layers=2)
    generator_state = torch.get_rng_state()
    assert torch.equal(model(ids())[0], without(ids())[0])
    assert torch.equal(torch.get_rng_state(), generator_state)
    model.train()
    dropped = place not in ("state", "weights") or kind != "sru"  # which has no recurrent matrices
    assert torch.equal(model(ids())[0], model(ids())[0]) != dropped


def test_embedding_dropout_drops_whole_characters():
    """Variational: the same ones throughout a window, and others in each stream; else again at each step."""

    def mask(x, **options):
        model, seen = model_of(embedding=4, dropout={"embedding": 0.5, **options}), []
        torch.nn.init.ones_(model.embedding.weight)
        model.layers.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
        model(x)
        return seen[0].detach()

    x = ids(T=40)
    variational = mask(x, variational=True)
    for stream, character in itertools.product(range(B), range(V)):
        assert len(variational[x[:, stream] == character, stream].unique()) <= 1
    assert not torch.equal(variational[:, 0] == 0, variational[:, 1] == 0)
    at_each_step = mask(torch.zeros(200, B, dtype=torch.long))
    assert set(at_each_step.unique().tolist()) == {0.0, 2.0}
    assert (at_each_step == at_each_step[..., :1]).all()
    assert 0.3 < (at_each_step == 0).float().mean() < 0.7
