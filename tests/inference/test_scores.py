"""Scores and features: every text is read as if it were alone, whatever is read beside it."""

import copy
import itertools
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from charlm.cells import CELLS, LSTM, SLSTM
from charlm.cells.state_options import PLAIN
from charlm.data.records import as_in_training, whole_records
from charlm.errors import DataError, VocabularyError
from charlm.inference import reader
from charlm.inference.evaluation import WARMUP, evaluate
from charlm.inference.reach import gradient_norms
from charlm.inference.reader import STREAMS
from charlm.inference.texts import score_records, score_texts, text_features
from charlm.layers import RecurrentLayers
from charlm.layers.reference import reference_layer
from charlm.model import CharLM
from tests.inference.models import H, V, alone, encoded, ids, model_of
from tests.text import words_text

END = 3
LENGTHS = [5, 0, 40, 1, 3, 300, 2, 129, 40, 128]


@pytest.mark.parametrize(("kind", "streams"), [("lstm", 3), ("gru", 64), ("minlstm", 64)])
def test_texts_are_read_as_each_alone(kind, streams, monkeypatch):
    """At most four times as far from the truth, in float64, as the reference in float32."""
    monkeypatch.setattr(reader, "STREAMS", streams)

    model, texts = model_of(kind), [ids(length, length) for length in LENGTHS]
    single, double = ([alone(m, text) for text in texts] for m in (model, copy.deepcopy(model).double()))

    def error(which):
        return max(np.abs(a[which] - b[which]).max(initial=0) for a, b in zip(single, double, strict=True))

    for found, (_, truth) in zip(score_texts(model, texts), double, strict=True):
        np.testing.assert_allclose(found, truth, rtol=0, atol=4 * error(1) + 1e-7)
    last, mean = (text_features(model, texts, pool) for pool in ("last", "mean"))
    for n, (outputs_NH, _) in enumerate(double):
        if len(outputs_NH):
            np.testing.assert_allclose(last[n], outputs_NH[-1], rtol=0, atol=4 * error(0) + 1e-7)
            np.testing.assert_allclose(mean[n], outputs_NH.mean(0), rtol=0, atol=4 * error(0) + 1e-7)
        else:
            assert np.isnan([last[n], mean[n]]).all()


@pytest.mark.parametrize(("streams", "extra"), [(2, 0), (3, 1)])
def test_many_streams_score_every_target_once_in_its_place(streams, extra):
    """Each stream begins with the state that the text before leaves: without warm-up the seams would be off."""
    model, part = model_of(), 4 * WARMUP
    text = ids(streams * part + 1 + extra)
    score, (_, truth) = evaluate(model, encoded(text), streams=streams, per_symbol=True), alone(model, text)
    assert score.bits_per_char == pytest.approx(truth.mean() / math.log(2), rel=1e-4)
    np.testing.assert_allclose(score.symbol_nats, truth, rtol=1e-3, atol=1e-4)
    assert score.nats_sum == pytest.approx(float(score.symbol_nats.sum(dtype=np.float64)), rel=1e-6)
    for seam in range(0, streams * part, -(-(len(text) - 1) // streams)):
        np.testing.assert_allclose(score.symbol_nats[seam : seam + 3], truth[seam : seam + 3], atol=1e-5)
    _, cold = alone(model, text[part : 2 * part])
    assert np.abs(cold[:3] - truth[part : part + 3]).max() > 1e-2


@pytest.mark.parametrize(
    ("kind", "streams", "count", "longest"), [("lstm", 1, 1, 0), ("rhn", 7, 120, 20), ("lstm", 1, 9, 300)]
)
def test_the_score_of_records_is_the_sum_of_their_scores(kind, streams, count, longest):
    model = model_of(kind)
    draw, symbols = np.random.default_rng(count), [symbol for symbol in range(V) if symbol != END]
    records = [[*draw.choice(symbols, size=draw.integers(0, longest + 1)), END] for _ in range(count)]
    truth = np.concatenate([alone(model.double(), [END, *record])[1] for record in records])
    model.float().reset_id = END
    text = np.array([END, *itertools.chain(*records)], np.uint8)
    score = evaluate(model, encoded(text), streams=streams, per_symbol=True)
    assert score.of.chars == len(truth) == len(text) - 1
    np.testing.assert_allclose(score.symbol_nats, truth, rtol=2e-4, atol=2e-5)
    assert score.nats_sum == pytest.approx(truth.sum(), rel=1e-6)
    assert score.nats_per_record == pytest.approx(truth.sum() / len(records), rel=1e-6)


def test_dropout_is_off_and_training_goes_on_afterwards():
    model, text = model_of().train(), ids(STREAMS * 4 * WARMUP // 8)
    assert evaluate(model, encoded(text)).nats_sum == evaluate(model, encoded(text)).nats_sum
    assert model.training
    with pytest.raises(DataError):
        evaluate(model, encoded(ids(1)))


# Scores of records as they come: each as if the others were not there

LONG = words_text(3000).replace("\n", "")
RECORDS = [line.encode() for line in [*words_text(3000).splitlines(), "", "a", "tee. " * 60, "", LONG]]


@pytest.fixture
def trained(model):
    with torch.no_grad():
        model.network.decoder.weight.mul_(6)
    return model


def one_by_one(trained, records):
    """Nats of every character of each record, its end included, in float64."""
    network = copy.deepcopy(trained.network).double()
    return [alone(network, trained.vocabulary.encode(f"\n{record.decode()}\n"))[1] for record in records]


def in_blocks(data, seed):
    """Blocks as `Arriving` yields them: of whole records, or a stretch of one."""
    draw, start = np.random.default_rng(seed), 0
    while start < len(data):
        end = start + int(draw.choice([1, 30, 700, 4000]))
        last = data.rfind(b"\n", start, end) + 1
        yield data[start : last or end]
        start = last or end


def scored(trained, blocks, **options):
    records = whole_records(as_in_training(blocks, trained.vocabulary.level, trained.config.data.records, "log"))
    return [*itertools.chain(*score_records(trained.network, trained.vocabulary, records, "log", **options))]


def assert_scores(scores, records, truth):
    assert [record.encode() for record, _, _ in scores] == records
    for (_, nats, _), expected in zip(scores, truth, strict=True):
        np.testing.assert_allclose(nats, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reads_records", [False, True], ids=["text", "records"])
def test_each_record_is_scored_as_if_it_were_alone_however_the_blocks_are_cut(trained, reads_records):
    if reads_records:
        trained.network.reset_id = int(trained.vocabulary.encode("\n")[0])
    scores = scored(trained, in_blocks(b"\n".join(RECORDS), int(reads_records)))
    assert_scores(scores, RECORDS, one_by_one(trained, RECORDS))
    assert scored(trained, []) == []
    assert [len(nats) for _, nats, _ in scored(trained, [b"\n\n"])] == [1, 1]


def test_a_long_record_is_read_in_windows_with_bounded_memory(trained, monkeypatch):
    records = [b"tee", words_text(20_000).replace("\n", " ").encode(), b"so"]
    shapes, outputs = [], trained.network.outputs
    monkeypatch.setattr(trained.network, "outputs", lambda x, *state: shapes.append(x.shape) or outputs(x, *state))
    assert [len(nats) for _, nats, _ in scored(trained, in_blocks(b"\n".join(records), 1))] == [4, 20_001, 3]
    assert max(T * B for T, B in shapes) <= 2**14


def test_unknown_characters_are_refused_or_have_the_score_that_the_user_gives_them(trained):
    records = ["so tee", "so Zé, tee", "so"]
    truth = one_by_one(trained, [record.translate({ord(c): None for c in "Zé,"}).encode() for record in records])
    with_unknown = np.concatenate([truth[1][:3], [7.0] * 3, truth[1][3:]])
    for blocks in (["\n".join(records).encode()], [b"so tee\n", b"so Z", "é, tee\nso".encode()]):
        with pytest.raises(VocabularyError):
            scored(trained, blocks)
        counted = scored(trained, blocks, unknown_nats=7.0)
        assert_scores(counted, [record.encode() for record in records], [truth[0], with_unknown, truth[2]])


# Gradients with respect to earlier inputs


class RescaledLSTM(LSTM):
    def step(self, p, x, h, c):
        h, c = super().step(p, x, h, 20 * c)
        return h, 0.05 * c


class ShiftedSLSTM(SLSTM):
    """m is larger by 3 and so c and n are smaller by the factor e^3; h is the same."""

    internal: ClassVar = ("m",)

    def step(self, p, x, h, c, n, m):
        scale = math.exp(3)
        h, c, n, m = super().step(p, x, h, scale * c, scale * n, m - 3)
        return h, c / scale, n / scale, m + 3


def two_layers(cell):
    torch.manual_seed(3)
    return CharLM(V, 6, RecurrentLayers(cell, 6, 2, residual=True)).eval()


def norms_of(model, window):
    """For both layers, by autograd through the reference loop, from the last input but one to the first: [2, T]."""
    layers, y = model.layers, model.embedding(torch.from_numpy(window[:-1]))[:, None]
    zeros, inputs = tuple(tensor[0] for tensor in layers.initial_state(1)), []
    for layer in range(2):
        inputs.append(y)
        outputs, _ = reference_layer(y, layers.layer_call(layer, zeros, len(y), PLAIN, training=False))
        y = y + outputs if layer else outputs
    loss = F.cross_entropy(model.logits(y[-1]), torch.from_numpy(window[-1:]))
    return np.stack([dx_T1I[:-1].flip(0)[:, 0].norm(dim=-1) for dx_T1I in torch.autograd.grad(loss, inputs)])


@pytest.mark.parametrize("cell", [*CELLS.values(), RescaledLSTM])
def test_norms_are_those_of_autograd_through_the_reference_loop(cell):
    model, text = two_layers(cell(hidden=H)), ids(10).astype(np.int64)
    double = copy.deepcopy(model).double()
    with torch.no_grad():
        found = gradient_norms(double if cell is RescaledLSTM else model, text, longest=3, positions=2)
    expected = [norms_of(double, window)[:, :3] for window in (text[:8], text[2:])]
    np.testing.assert_allclose(found, np.mean(expected, axis=0), rtol=1e-4)


@pytest.mark.parametrize(("cell", "same"), [(LSTM, RescaledLSTM), (SLSTM, ShiftedSLSTM)])
def test_norms_do_not_depend_on_the_scale_of_a_state(cell, same):
    models = [two_layers(kind(hidden=H)).double() for kind in (cell, same)]
    models[1].load_state_dict(models[0].state_dict())
    x_TB = torch.from_numpy(ids(40).astype(np.int64))[:, None]
    logits = [model(x_TB)[0].detach().numpy() for model in models]
    norms = [gradient_norms(model, ids(200), longest=20, positions=5) for model in models]
    for one, other in (logits, norms):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_nothing_flows_back_from_one_record_to_another():
    model, text = two_layers(LSTM(hidden=H)), np.array([1, 2, 0, 1, 2, END, 4, 5])
    model.reset_id = END
    norms = gradient_norms(model, text, longest=3)
    assert (norms[:, 0] > 0).all()
    assert (norms[:, 1:] == 0).all()
