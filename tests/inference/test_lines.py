"""Scores of lines: each as if the others were not there."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from charlm.cells import CELLS
from charlm.config import parse_config
from charlm.inference.evaluation import evaluate
from charlm.model import build_model

CPU = torch.device("cpu")
V, NEWLINE = 11, 3


def model_of(kind="lstm"):
    torch.manual_seed(3)
    model = build_model(parse_config({"model": {"cell": {"kind": kind, "hidden": 12}}}, "t").model, V)
    with torch.no_grad():
        model.decoder.weight.mul_(6)
    model.begins = NEWLINE
    return model.eval()


def some_lines(count, longest):
    draw = np.random.default_rng(count)
    symbols = [symbol for symbol in range(V) if symbol != NEWLINE]
    return [draw.choice(symbols, size=draw.integers(0, longest + 1)).tolist() for _ in range(count)]


def one_by_one(model, lines):
    """Nats of every character of each line, its newline included, in float64."""
    model = model.double()
    found = []
    for line in lines:
        ids = torch.tensor([NEWLINE, *line, NEWLINE])
        with torch.no_grad():
            logits, _ = model(ids[:-1, None])
        found.append(F.cross_entropy(logits[:, 0], ids[1:], reduction="none").numpy())
    model.float()
    return found


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize(("count", "longest"), [(1, 0), (1, 30), (40, 8), (300, 20), (9, 900)])
@pytest.mark.parametrize("streams", [1, 7])
def test_the_score_of_lines_is_the_sum_of_their_scores(kind, count, longest, streams):
    model, lines = model_of(kind), some_lines(count, longest)
    ids = np.array([NEWLINE, *itertools.chain(*([*line, NEWLINE] for line in lines))], np.uint8)
    truth = np.concatenate(one_by_one(model, lines))
    score = evaluate(model, ids, CPU, streams=streams, per_char=True)
    assert score.targets == len(truth) == sum(len(line) + 1 for line in lines)
    np.testing.assert_allclose(score.per_char_nats, truth, rtol=2e-4, atol=2e-5)
    assert score.nats_sum == pytest.approx(truth.sum(), rel=1e-6)
    assert score.nats_per_line == pytest.approx(truth.sum() / len(lines), rel=1e-6)
