"""Dynamic evaluation: scored first, learned from afterwards, and nothing of it left behind."""

import itertools

import numpy as np
import pytest
import torch

from charlm.cells import CELLS
from charlm.errors import DataError, DivergenceError
from charlm.inference import dynamic
from charlm.inference.dynamic import Adaptation, evaluate_dynamically, gradient_rms
from charlm.inference.evaluation import WARMUP, evaluate
from tests.inference.models import CPU, V, ids, model_of


@pytest.fixture(autouse=True)
def few_windows(monkeypatch):
    monkeypatch.setattr(dynamic, "_WINDOWS", 16)


TRAIN = ids(3000, seed=9)


def dynamically(model, text, streams=1, **adaptation):
    return evaluate_dynamically(model, text, TRAIN, CPU, Adaptation(**adaptation), streams=streams, per_char=True)


@pytest.mark.parametrize(("kind", "streams"), [*zip(CELLS, itertools.cycle([1, 3]), strict=False)])
def test_without_a_rate_it_is_the_static_score(kind, streams):
    model, text = model_of(kind), ids(3 * 4 * WARMUP + 6)
    static = evaluate(model, text, CPU, streams=streams, per_char=True)
    for decay in (0.0, 0.5):
        score = dynamically(model, text, streams, lr=0.0, decay=decay)
        assert score.targets == static.targets
        assert score.nats_sum == pytest.approx(static.nats_sum, rel=1e-6)
        np.testing.assert_allclose(score.per_char_nats, static.per_char_nats, rtol=1e-4, atol=1e-5)
    assert dynamically(model, text, streams).nats_sum != pytest.approx(static.nats_sum, rel=1e-6)


@pytest.mark.parametrize(("steps", "behind"), [(1, 50), (7, 1), (7, 139), (7, 140), (7, 141), (20, 140)])
def test_nothing_behind_a_character_changes_its_score(steps, behind):
    model, text = model_of(), ids(200)
    other = text.copy()
    other[behind:] = (other[behind:] + 1) % V
    first, second = (dynamically(model, each, lr=0.05, steps=steps).per_char_nats for each in (text, other))
    np.testing.assert_array_equal(first[: behind - 1], second[: behind - 1])
    assert first[behind - 1] != second[behind - 1]


@pytest.mark.parametrize(("streams", "part", "T"), [(1, 30, 10), (2, 4 * WARMUP, 400)])
def test_a_step_is_the_paper_s(streams, part, T):
    """Three windows by hand: θ ← θ − η g / (RMS + ε) + λ (θ₀ − θ) RMS / mean(RMS), the last factor at most 1.

    Of several streams g is the mean.
    """
    model, text = model_of(), ids(streams * part + 1)
    lr, decay = 0.02, 0.3
    sizes = gradient_rms(model, TRAIN, CPU, steps=T, streams=streams)
    mean = torch.cat([size.flatten() for size in sizes]).mean()
    by_hand = model_of()
    weights, trained = list(by_hand.parameters()), [p.detach().clone() for p in by_hand.parameters()]
    x_TB, y_TB = (torch.from_numpy(ids.astype(np.int64)).view(streams, part).T for ids in (text[:-1], text[1:]))
    state, expected = by_hand.layers.zero_state(streams), []
    if streams == 2:  # the second goes on where the first ends
        _, before = by_hand.features(x_TB[-WARMUP:, :1])
        state = tuple(torch.cat([zero[:, :1], of.detach()], 1) for zero, of in zip(state, before, strict=True))
    for start in range(0, part, T):
        logits_TBV, state = by_hand(x_TB[start : start + T], state)
        loss = torch.nn.functional.cross_entropy(logits_TBV.mT, y_TB[start : start + T], reduction="none")
        expected.append(loss.detach())
        gradients = torch.autograd.grad(loss.sum() / streams, weights)
        state = tuple(part.detach() for part in state)
        with torch.no_grad():
            for weight, origin, gradient, rms in zip(weights, trained, gradients, sizes, strict=True):
                share = (decay * rms / mean).clamp(max=1)
                weight += (origin - weight) * share - lr * gradient / (rms + 0.1 * mean)
    score = dynamically(model, text, streams, lr=lr, decay=decay, steps=T)
    np.testing.assert_allclose(score.per_char_nats, torch.cat(expected).T.flatten(), rtol=1e-4)


def test_streams_of_a_window_are_far_from_one_another(monkeypatch):
    """Of four places in the text the first window reads the first and third, the second the others."""
    monkeypatch.setattr(dynamic, "_WINDOWS", 4)
    model, T = model_of(), 20
    x = torch.from_numpy(TRAIN.astype(np.int64))
    places = np.linspace(0, len(TRAIN) - 1 - T - WARMUP, 4).astype(int)
    squares = []
    for pair in (places[::2], places[1::2]):
        window_TB = torch.stack([x[at : at + WARMUP + T + 1] for at in pair], 1)
        with torch.no_grad():
            _, state = model.features(window_TB[:WARMUP])
        logits_TBV, _ = model(window_TB[WARMUP:-1], state)
        loss = torch.nn.functional.cross_entropy(logits_TBV.mT, window_TB[WARMUP + 1 :], reduction="sum") / 2
        squares.append([gradient.square() for gradient in torch.autograd.grad(loss, list(model.parameters()))])
    for rms, *of in zip(gradient_rms(model, TRAIN, CPU, steps=T, streams=2), *squares, strict=True):
        torch.testing.assert_close(rms, torch.stack(of).mean(0).sqrt(), rtol=1e-4, atol=1e-6)


def test_a_text_that_repeats_itself_is_learned_unless_decay_holds_the_weights():
    """Random letters repeated: what static weights never know, dynamic ones come to know."""
    model, text = model_of(), np.tile(ids(60), 60)
    static = evaluate(model, text, CPU, streams=1).nats_per_char
    free, held = (dynamically(model, text, lr=0.02, decay=decay, steps=10) for decay in (0.0, 1.0))
    assert free.nats_per_char < 0.8 * static
    assert free.per_char_nats[-60:].mean() < 0.8 * free.per_char_nats[:60].mean()
    assert abs(held.nats_per_char - static) < 0.5 * abs(free.nats_per_char - static)


@pytest.mark.parametrize("tied", [False, True])
def test_the_model_is_left_as_it_was_also_after_an_interruption(tied, monkeypatch):
    model = model_of(embedding=13, tie_embeddings=tied).train(not tied)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    first = dynamically(model, ids(300), lr=0.1)
    assert dynamically(model, ids(300), lr=0.1).nats_sum == first.nats_sum
    calls, changed = [], []
    grad = torch.autograd.grad

    def interrupted(*args, **options):
        calls.append(1)
        if len(calls) == dynamic._WINDOWS + 4:
            changed.extend(n for n, weight in model.named_parameters() if not torch.equal(weight, before[n]))
            raise KeyboardInterrupt
        return grad(*args, **options)

    monkeypatch.setattr(torch.autograd, "grad", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dynamically(model, ids(300), lr=0.1)
    assert changed
    assert model.training == (not tied)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert all(weight.grad is None for weight in model.parameters())


def test_a_rate_that_is_too_high():
    model = model_of("rnn")
    before = [weight.detach().clone() for weight in model.parameters()]
    with pytest.raises(
        DivergenceError,
        match=r"dynamic evaluation: found a loss of (nan|inf) nats; allowed: finite numbers; lower the learning rate",
    ):
        dynamically(model, ids(300), lr=1e38)
    assert all(torch.equal(weight, origin) for weight, origin in zip(model.parameters(), before, strict=True))


def test_short_texts():
    model, text = model_of(), ids(300)
    assert dynamically(model, text, streams=64).nats_sum == dynamically(model, text).nats_sum
    assert dynamically(model, text, steps=10**9).nats_sum == dynamically(model, text, steps=299).nats_sum
    for length in (0, 1):
        with pytest.raises(DataError, match=f"evaluation: found a text of {length} characters?; allowed: 2 or more"):
            dynamically(model, ids(length))
    for length, streams in ((2, 1), (3, 5), (15, 100), (40, 1), (WARMUP + 10, 100)):
        sizes = gradient_rms(model, ids(length), CPU, steps=20, streams=streams)
        assert all(bool(torch.isfinite(rms).all()) for rms in sizes)
        assert any(bool((rms > 0).any()) for rms in sizes)
    # With a vocabulary of one character all gradients are 0, and so is their size.
    text = np.zeros(100, np.uint8)
    assert evaluate_dynamically(model_of(vocabulary=1), text, text, CPU, Adaptation()).nats_sum == 0
