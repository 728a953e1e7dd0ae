"""Dynamic evaluation: scored first, learned from afterwards, and nothing of it left behind."""

import itertools

import numpy as np
import pytest
import torch

from charlm.errors import DivergenceError
from charlm.inference.dynamic import evaluate_dynamically, gradient_rms
from charlm.inference.evaluation import WARMUP, evaluate
from tests.inference.models import V, encoded, ids, model_of

TRAIN = ids(600, seed=9)


def dynamically(model, text, **adaptation):
    return evaluate_dynamically(model, encoded(text), TRAIN, **adaptation, per_symbol=True)


@pytest.mark.parametrize("kind", ["lstm", "rhn"])
def test_without_a_rate_it_is_the_static_score(kind):
    model, text = model_of(kind), ids(1000)
    static = evaluate(model, encoded(text), streams=1, per_symbol=True)
    score = dynamically(model, text, lr=0.0, decay=0.5)
    assert (score.of.chars, score.nats_sum) == (static.of.chars, pytest.approx(static.nats_sum, rel=1e-6))
    np.testing.assert_allclose(score.symbol_nats, static.symbol_nats, rtol=1e-4, atol=1e-5)
    assert dynamically(model, text).nats_sum != pytest.approx(static.nats_sum, rel=1e-6)


@pytest.mark.parametrize(("steps", "behind"), [(1, 5), (7, 1), (7, 70), (7, 71)])
def test_nothing_behind_a_character_changes_its_score(steps, behind):
    model, text = model_of(), ids(80)
    other = text.copy()
    other[behind:] = (other[behind:] + 1) % V
    first, second = (dynamically(model, each, lr=0.05, steps=steps).symbol_nats for each in (text, other))
    np.testing.assert_array_equal(first[: behind - 1], second[: behind - 1])
    assert first[behind - 1] != second[behind - 1]


def test_a_step_is_the_paper_s():
    """Three windows by hand: θ ← θ − η g / (RMS + ε) + λ (θ₀ − θ) RMS / mean(RMS), the last factor at most 1."""
    model, text, T = model_of(), ids(31), 10
    lr, decay = 0.02, 0.3
    sizes = gradient_rms(model, TRAIN, T)
    mean = torch.cat([size.flatten() for size in sizes]).mean()
    by_hand = model_of()
    weights, trained = list(by_hand.parameters()), [p.detach().clone() for p in by_hand.parameters()]
    x_T1, y_T1 = (torch.from_numpy(ids.astype(np.int64))[:, None] for ids in (text[:-1], text[1:]))
    state, expected = by_hand.layers.initial_state(1), []
    for start in range(0, 30, T):
        logits_T1V, state = by_hand(x_T1[start : start + T], state)
        loss = torch.nn.functional.cross_entropy(logits_T1V.mT, y_T1[start : start + T], reduction="none")
        expected.append(loss.detach())
        gradients = torch.autograd.grad(loss.sum(), weights)
        state = tuple(part.detach() for part in state)
        with torch.no_grad():
            for weight, origin, gradient, rms in zip(weights, trained, gradients, sizes, strict=True):
                share = (decay * rms / mean).clamp(max=1)
                weight += (origin - weight) * share - lr * gradient / (rms + 0.1 * mean)
    score = dynamically(model, text, lr=lr, decay=decay, steps=T)
    np.testing.assert_allclose(score.symbol_nats, torch.cat(expected).flatten(), rtol=1e-4)


def test_sizes_of_gradients_are_measured_at_places_all_over_the_text():
    model, T = model_of(), 20
    x = torch.from_numpy(TRAIN.astype(np.int64))
    squares = []
    for at in np.linspace(0, len(TRAIN) - 1 - T - WARMUP, len(TRAIN) // T).astype(int):
        window_T1 = x[at : at + WARMUP + T + 1, None]
        with torch.no_grad():
            _, state = model.features(window_T1[:WARMUP])
        logits_T1V, _ = model(window_T1[WARMUP:-1], state)
        loss = torch.nn.functional.cross_entropy(logits_T1V.mT, window_T1[WARMUP + 1 :], reduction="sum")
        squares.append([gradient.square() for gradient in torch.autograd.grad(loss, list(model.parameters()))])
    for rms, *of in zip(gradient_rms(model, TRAIN, T), *squares, strict=True):
        torch.testing.assert_close(rms, torch.stack(of).mean(0).sqrt(), rtol=1e-4, atol=1e-6)


def test_the_model_is_left_as_it_was_also_after_an_interruption(monkeypatch):
    model = model_of(embedding=13, tie_embeddings=True).train()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    first = dynamically(model, ids(300), lr=0.1)
    assert dynamically(model, ids(300), lr=0.1).nats_sum == first.nats_sum
    calls, changed = itertools.count(), []
    grad = torch.autograd.grad

    def interrupted(*args, **options):
        if next(calls) == 15:  # after a few windows of the text itself
            changed.extend(name for name, weight in model.named_parameters() if not torch.equal(weight, before[name]))
            raise KeyboardInterrupt
        return grad(*args, **options)

    monkeypatch.setattr(torch.autograd, "grad", interrupted)
    with pytest.raises(KeyboardInterrupt):
        dynamically(model, ids(300), lr=0.1)
    assert changed
    assert model.training
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])
        assert weight.grad is None


def test_a_rate_that_is_too_high_is_an_error():
    model = model_of("rnn")
    model.decoder.weight.data *= 1e30
    with pytest.raises(DivergenceError):
        dynamically(model, ids(300), lr=1e9)
