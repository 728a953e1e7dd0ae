"""Evaluation of a whole text: every target once, the state carried, or each line by itself."""

import itertools
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
from tests.pairwise import pairwise

CPU = torch.device("cpu")
V, NEWLINE = 11, 3


def model_of(kind="lstm"):
    torch.manual_seed(3)
    model = build_model(parse_config({"model": {"cell": {"kind": kind, "hidden": 12}, "dropout": 0.5}}, "t").model, V)
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


@pytest.mark.parametrize(
    ("kind", "length"), [*zip(CELLS, itertools.cycle([2, 3, 127, 128, 129, 130, 1000]), strict=False)]
)
def test_one_stream_is_one_pass_over_the_text(kind, length):
    model, text = model_of(kind), ids(length)
    score = evaluate(model, text, CPU, streams=1, per_char=True)
    truth = one_pass(model, text)
    assert score.targets == length - 1
    np.testing.assert_allclose(score.per_char_nats, truth, rtol=1e-4, atol=1e-5)
    assert score.nats_per_char == pytest.approx(float(truth.astype(np.float64).mean()), rel=1e-6)
    assert score.bits_per_char == pytest.approx(score.nats_per_char / math.log(2))


@pytest.mark.parametrize(("streams", "extra"), [(2, 0), (3, 1), (7, 5), (7, 0)])
def test_many_streams_score_every_target_once_in_its_place(streams, extra):
    """Each stream begins with the state that the text before leaves: without warm-up the seams would be off."""
    model, part = model_of(), 4 * WARMUP
    text = ids(streams * part + 1 + extra)
    score = evaluate(model, text, CPU, streams=streams, per_char=True)
    truth = one_pass(model, text)
    np.testing.assert_allclose(score.per_char_nats, truth, rtol=1e-3, atol=1e-4)
    assert score.nats_sum == pytest.approx(float(score.per_char_nats.sum(dtype=np.float64)), rel=1e-6)
    for seam in range(0, streams * part, -(-(len(text) - 1) // streams)):
        np.testing.assert_allclose(score.per_char_nats[seam : seam + 3], truth[seam : seam + 3], atol=1e-5)
    cold = one_pass(model, text[part : 2 * part])
    assert np.abs(cold[:3] - truth[part : part + 3]).max() > 1e-2


@pairwise(kind=[*CELLS], size=[(1, 0), (1, 30), (40, 8), (300, 20), (9, 900)], streams=[1, 7])
def test_the_score_of_lines_is_the_sum_of_their_scores(kind, size, streams):
    model, (count, longest) = model_of(kind), size
    draw, symbols = np.random.default_rng(count), [symbol for symbol in range(V) if symbol != NEWLINE]
    lines = [draw.choice(symbols, size=draw.integers(0, longest + 1)).tolist() for _ in range(count)]
    framed = [np.array([NEWLINE, *line, NEWLINE], np.uint8) for line in lines]
    truth = np.concatenate([one_pass(model.double(), line) for line in framed])
    model.float().begins = NEWLINE
    text = np.array([NEWLINE, *itertools.chain(*(line[1:] for line in framed))], np.uint8)
    score = evaluate(model, text, CPU, streams=streams, per_char=True)
    assert score.targets == len(truth) == len(text) - 1
    np.testing.assert_allclose(score.per_char_nats, truth, rtol=2e-4, atol=2e-5)
    assert score.nats_sum == pytest.approx(truth.sum(), rel=1e-6)
    assert score.nats_per_line == pytest.approx(truth.sum() / len(lines), rel=1e-6)


def test_mode_is_restored_and_dropout_is_off():
    model, text = model_of().train(), ids(STREAMS * 4 * WARMUP // 8)
    score = evaluate(model, text, CPU)
    assert score.nats_sum == evaluate(model, text, CPU).nats_sum
    assert model.training
    assert score.nats_per_char == pytest.approx(evaluate(model, text, CPU, streams=1).nats_per_char, rel=1e-5)


@pytest.mark.parametrize("length", [0, 1])
def test_nothing_to_score(length):
    with pytest.raises(DataError, match=f"evaluation: found a text of {length} characters?; allowed: 2 or more"):
        evaluate(model_of(), ids(length), CPU)
