"""Labels of lines: each score is that of the whole line with the label, read by itself."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from charlm.cells import CELLS
from charlm.config import parse_config
from charlm.data.vocabulary import Vocabulary
from charlm.inference import evaluation, labels
from charlm.inference.labels import Classification, LabelStarts, label_nats
from charlm.model import build_model

CPU = torch.device("cpu")
VOCABULARY = Vocabulary("char", "\n:abcdefgh")
PREFIXES = ["a:", "abc:", ":", "b:", "hgfedcba:"]


def model_of(kind="lstm"):
    torch.manual_seed(3)
    config = {"cell": {"kind": kind, "hidden": 13}, "embedding": 6, "layers": 2, "dropout": 0.5}
    model = build_model(parse_config({"model": config}, "t").model, len(VOCABULARY))
    with torch.no_grad():
        model.decoder.weight.mul_(6)
    model.begins = 0
    return model.eval()


def some_lines(count, longest=30):
    draw = np.random.default_rng(1)
    lengths = [*draw.integers(0, longest + 1, size=count), 300, 0]
    return ["".join(draw.choice(list(":abcdefgh"), size=length)) for length in lengths]


def one_by_one(model, lines):
    """−ln p of each line with each label, from the equations."""
    nats = np.zeros((len(lines), len(PREFIXES)))
    for n, line in enumerate(lines):
        for k, prefix in enumerate(PREFIXES):
            x = torch.from_numpy(VOCABULARY.encode(f"\n{prefix}{line}\n").astype(np.int64))
            with torch.no_grad():
                outputs, _ = model.layers.forward_reference(model.embedding(x[:-1])[:, None])
                logits = F.linear(outputs[:, 0], model.decoder.weight, model.decoder.bias)
            nats[n, k] = F.cross_entropy(logits, x[1:], reduction="none").sum(dtype=torch.float64)
    return nats


@pytest.mark.parametrize(("kind", "together"), [*zip(CELLS, itertools.cycle([1, 4096]), strict=False)])
def test_scores_are_those_of_whole_lines(kind, together, monkeypatch):
    """At most four times as far from the truth, in float64, as the reference in float32."""
    monkeypatch.setattr(labels, "_TOGETHER", together)
    monkeypatch.setattr(evaluation, "STREAMS", 7)
    model, lines = model_of(kind), some_lines(8)
    starts = LabelStarts.of(model, VOCABULARY, PREFIXES, CPU)
    nats = label_nats(model, [VOCABULARY.encode(f"{line}\n") for line in lines], starts, CPU)
    single, double = (one_by_one(each, lines) for each in (model, copy.deepcopy(model).double()))
    assert nats.dtype == np.float64
    np.testing.assert_allclose(nats, double, rtol=0, atol=4 * np.abs(single - double).max() + 1e-6)


def test_what_the_scores_say():
    classification = Classification(("a", "b", "c"), np.array([[3.0, 1.0, 2.0], [900.0, 900.0, 905.0]]))
    assert len(classification) == 2
    assert classification.best == ["b", "a"]
    assert classification.margin_bits.tolist() == pytest.approx([1 / math.log(2), 0])
    total = 1 + math.exp(-1) + math.exp(-2)
    p = classification.probabilities
    assert p[0].tolist() == pytest.approx([math.exp(-2) / total, 1 / total, math.exp(-1) / total])
    assert p.sum(1).tolist() == pytest.approx([1, 1])
    assert [[label for label, _ in row] for row in classification.top(2)] == [["b", "c"], ["a", "b"]]
    assert classification.top(9)[0] == [("abc"[k], pytest.approx(p[0, k])) for k in (1, 2, 0)]
    single = Classification(("a",), np.array([[3.0]]))
    assert (single.best, single.margin_bits.tolist(), single.top(2)) == (["a"], [math.inf], [[("a", 1.0)]])
    none = Classification(tuple(PREFIXES), np.zeros((0, 5)))
    assert (none.best, none.top(2), len(none.margin_bits)) == ([], [], 0)
