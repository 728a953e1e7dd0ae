"""Evaluation of a whole text: every target once, the state carried."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from charlm.cells import CELLS
from charlm.config import parse_config
from charlm.errors import DataError
from charlm.inference.evaluation import STREAMS, WARMUP, evaluate
from charlm.model import build_model

CPU = torch.device("cpu")
V = 11


def model_of(kind="lstm", hidden=12):
    torch.manual_seed(3)
    model = build_model(
        parse_config({"model": {"cell": {"kind": kind, "hidden": hidden}, "dropout": 0.5}}, "t").model, V
    )
    with torch.no_grad():
        model.decoder.weight.mul_(6)
    return model.eval()


def ids(length, seed=0):
    return np.random.default_rng(seed).integers(V, size=length).astype(np.uint8)


def one_pass(model, text):
    """Cross-entropy of each target when the text is read in one go."""
    x = torch.from_numpy(text.astype(np.int64))
    with torch.no_grad():
        logits, _ = model(x[:-1, None])
    return F.cross_entropy(logits[:, 0], x[1:], reduction="none").numpy()


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("length", [2, 3, 127, 128, 129, 130, 1000])
def test_one_stream_is_one_pass_over_the_text(kind, length):
    model, text = model_of(kind), ids(length)
    score = evaluate(model, text, CPU, streams=1, per_char=True)
    expected = one_pass(model, text)
    assert score.targets == length - 1
    np.testing.assert_allclose(score.per_char_nats, expected, rtol=1e-4, atol=1e-5)
    assert score.nats_per_char == pytest.approx(float(expected.astype(np.float64).mean()), rel=1e-6)
    assert score.bits_per_char == pytest.approx(score.nats_per_char / math.log(2))


@pytest.mark.parametrize("streams", [2, 3, 7])
@pytest.mark.parametrize("extra", [0, 1, 5])
def test_many_streams_score_every_target_once_in_its_place(streams, extra):
    model = model_of()
    text = ids(streams * 4 * WARMUP + 1 + extra)
    score = evaluate(model, text, CPU, streams=streams, per_char=True)
    np.testing.assert_allclose(score.per_char_nats, one_pass(model, text), rtol=1e-3, atol=1e-4)
    assert score.nats_sum == pytest.approx(float(score.per_char_nats.sum(dtype=np.float64)), rel=1e-6)


def test_streams_begin_with_the_state_that_the_text_before_leaves():
    """Without the warm-up, or with it for the first stream, the scores at the seams would be off."""
    model = model_of()
    text = ids(4 * 4 * WARMUP + 1)
    score = evaluate(model, text, CPU, streams=4, per_char=True)
    expected = one_pass(model, text)
    part = 4 * WARMUP
    for seam in range(0, len(text) - 1, part):
        np.testing.assert_allclose(score.per_char_nats[seam : seam + 3], expected[seam : seam + 3], atol=1e-5)
    cold = np.concatenate([one_pass(model, text[s : s + part + 1]) for s in range(0, len(text) - 1, part)])
    assert np.abs(cold - expected)[part : part + 3].max() > 1e-2


def test_mode_is_kept_and_dropout_is_off():
    model = model_of().train()
    text = ids(500)
    assert evaluate(model, text, CPU).nats_sum == evaluate(model, text, CPU).nats_sum
    assert model.training


def test_default_streams_agree_with_one():
    model, text = model_of(), ids(STREAMS * 4 * WARMUP // 2)
    assert evaluate(model, text, CPU).nats_per_char == pytest.approx(
        evaluate(model, text, CPU, streams=1).nats_per_char, rel=1e-5
    )


@pytest.mark.parametrize("length", [0, 1])
def test_nothing_to_score(length):
    with pytest.raises(DataError, match=f"evaluation: found a text of {length} characters?; allowed: 2 or more"):
        evaluate(model_of(), ids(length), CPU)
