"""Scores of lines as they come: each as if the others were not there."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError, VocabularyError
from charlm.inference.dynamic import Adaptation
from charlm.inference.evaluation import PERCENTS, evaluate, line_quantiles
from charlm.inference.lines import limit_nats, score_lines
from charlm.inference.options import Limit
from charlm.model import build_model
from tests.inference.models import alone
from tests.text import words_text

LINES = [line.encode() for line in [*words_text(3000).splitlines(), "", "a", "tee. " * 60, "", words_text(6000)[:5000]]]
LINES = [line.replace(b"\n", b"") for line in LINES]
FAST = Adaptation(lr=0.01, decay=0.001, steps=64)


@pytest.fixture
def trained(model):
    with torch.no_grad():
        model.network.decoder.weight.mul_(6)
    return model


def of_lines(trained):
    """The same weights as a model of lines."""
    network = copy.copy(trained.network)
    network.reset_id = int(trained.vocabulary.encode("\n")[0])
    return replace(trained, network=network)


def one_by_one(trained, lines):
    """Nats of every character of each line, its newline included, in float64."""
    network = copy.deepcopy(trained.network).double()
    return [alone(network, trained.vocabulary.encode(f"\n{line.decode()}\n"))[1] for line in lines]


def in_blocks(data, seed):
    """Blocks as `Arriving` yields them: of whole lines, or a stretch of a line."""
    draw, start = np.random.default_rng(seed), 0
    while start < len(data):
        end = start + int(draw.choice([1, 30, 700, 4000]))
        last = data.rfind(b"\n", start, end) + 1
        yield data[start : last or end]
        start = last or end


def scored(trained, blocks, **options):
    return [line for lines in score_lines(trained, blocks, "log", **options) for line in lines]


def assert_scores(scores, lines, truth):
    assert [(score.number, score.text) for score in scores] == [*enumerate(lines, start=1)]
    for score, nats in zip(scores, truth, strict=True):
        assert score.chars == len(nats)
        assert score.nats == pytest.approx(nats.sum(), rel=1e-5)
        assert score.nats_per_char == pytest.approx(nats.mean(), rel=1e-5)
        if score.per_char_nats is not None:
            np.testing.assert_allclose(score.per_char_nats, nats, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "seed", "per_char"), [("text", 0, False), ("text", 1, True), ("lines", 2, True), ("lines", 3, False)]
)
def test_each_line_is_scored_as_if_it_were_alone_however_the_blocks_are_cut(trained, kind, seed, per_char):
    model = trained if kind == "text" else of_lines(trained)
    scores = scored(model, in_blocks(b"\n".join(LINES) + b"\n" * (seed % 2), seed), per_char=per_char)
    assert (scores[0].per_char_nats is not None) == per_char
    assert_scores(scores, LINES, one_by_one(trained, LINES))
    assert scored(model, []) == []
    assert [line.chars for line in scored(model, [b"\n\n"])] == [1, 1]


def test_a_long_line_is_read_in_windows_with_bounded_memory(trained, monkeypatch):
    lines = [b"tee", words_text(20_000).replace("\n", " ").encode(), b"so"]
    truth, shapes, outputs = one_by_one(trained, lines), [], trained.network.outputs
    monkeypatch.setattr(
        trained.network, "outputs", lambda x, *state: shapes.append(tuple(x.shape)) or outputs(x, *state)
    )
    assert_scores(scored(trained, in_blocks(b"\n".join(lines), 1)), lines, truth)
    assert max(T * B for T, B in shapes) <= 2**14


def test_characters_that_the_model_does_not_know(trained):
    lines = ["so tee", "so Zé, tee", "so"]
    truth = one_by_one(trained, [line.translate({ord(c): None for c in "Zé,"}).encode() for line in lines])
    with_unknown = np.concatenate([truth[1][:3], [7.0] * 3, truth[1][3:]])
    lines = [line.encode() for line in lines]
    for blocks in ([b"\n".join(lines)], [b"so tee\n", b"so Z", "é, tee\nso".encode()]):
        stream = score_lines(trained, blocks, "log")
        assert [line.text for line in next(stream)] == [b"so tee"]
        with pytest.raises(VocabularyError) as error:
            list(stream)
        assert str(error.value).startswith("log, line 2: found ")
        assert "'Z' (U+005A)" in str(error.value)
        assert str(error.value).endswith("; --skip-unknown leaves others out, --unknown-as BITS counts them")
        assert_scores(scored(trained, blocks, skip_unknown=True, per_char=True), lines, truth)
        counted = scored(trained, blocks, unknown_nats=7.0, per_char=True)
        assert_scores(counted, lines, [truth[0], with_unknown, truth[2]])


def test_characters_that_are_not_in_the_text_of_training(trained):
    with pytest.raises(VocabularyError, match=r"^log, line 2: found 'Z' \(U\+005A\), byte 0xE9 \(not UTF-8\), which "):
        scored(trained, [b"so\nt\xe9eZ\n"])
    [_, line] = scored(trained, [b"so\nt\xe9e\n"], skip_unknown=True)
    assert (line.text, line.chars) == (b"t\xe9e", 3)
    assert [line.text for line in scored(trained, [b"\xef\xbb\xbfso\n"])] == [b"so"]
    with pytest.raises(VocabularyError, match=r"^log, line 1: found '\\r' \(U\+000D\), which the model has never seen"):
        scored(trained, [b"so\r\n"])
    vocabulary = Vocabulary("char", trained.vocabulary.characters.replace("\n", "X"))
    with pytest.raises(VocabularyError, match=r": the model has never seen a newline, .*; leave out --lines$"):
        scored(replace(trained, vocabulary=vocabulary), [b"so\n"])


def test_a_byte_model_scores_bytes(trained):
    torch.manual_seed(1)
    network = build_model(trained.config.model, 256).eval()
    model = replace(trained, network=network, vocabulary=Vocabulary.of_bytes())
    scores = scored(model, [b"\xef\xbb\xbf\xff\r\n\xc3", b"\xa9"])
    assert [(line.text, line.chars) for line in scores] == [(b"\xef\xbb\xbf\xff\r", 6), (b"\xc3\xa9", 3)]


def test_it_learns_from_segments_that_it_has_scored(trained):
    weights = [parameter.clone() for parameter in trained.network.parameters()]
    data = b"mmm lll rrr\n" * 100
    static, dynamic = scored(trained, [data]), scored(trained, [data], adaptation=FAST)
    nats = np.array([line.nats for line in dynamic])
    np.testing.assert_allclose(nats[:16], static[0].nats, rtol=1e-5)
    by_segment = nats[:96].reshape(6, 16)
    np.testing.assert_allclose(by_segment, by_segment[:, :1].repeat(16, 1), rtol=1e-5)
    assert (np.diff(by_segment[:, 0]) < 0).all()
    with pytest.raises(VocabularyError):
        scored(trained, [b"so\n" * 40 + b"Z\n"], adaptation=FAST)
    for parameter, before in zip(trained.network.parameters(), weights, strict=True):
        assert torch.equal(parameter, before)


def test_what_it_learns_does_not_depend_on_when_the_lines_come(trained):
    data = b"\n".join([*LINES, b"", *LINES])
    whole = scored(trained, [data], adaptation=FAST)
    by_line = scored(trained, [line + b"\n" for line in data.split(b"\n")], adaptation=FAST)
    np.testing.assert_allclose([line.nats for line in by_line], [line.nats for line in whole], rtol=1e-3)
    assert whole[-1].nats < 0.99 * scored(trained, [data])[-1].nats


def test_limits():
    for text, nats in {"3": 3 * np.log(2), "3.5bits": 3.5 * np.log(2), ".5nats": 0.5, "2nats": 2.0}.items():
        assert limit_nats(Limit.parse(text), None, "--above") == pytest.approx(nats)
    for text in ("", "p", "p101", "-1", "3 bits", "p9bits", "nan", "1e3", "bits", "٣"):
        with pytest.raises(ValueError, match=r"allowed: bits per character \(3.2 or 3.2bits\), nats per character"):
            Limit.parse(text)


def test_percentiles_are_those_of_the_validation_lines(trained):
    lines = trained.vocabulary.decode(trained.split("valid")).split("\n")[1:-1]
    truth = [nats.mean() for nats in one_by_one(trained, [line.encode() for line in lines])]
    for percent in (0, 12.5, 50, 99, 99.95):
        limit = limit_nats(Limit.parse(f"p{percent}"), trained, "--above")
        assert limit == pytest.approx(np.quantile(truth, percent / 100), rel=0.02)
    stored = {**trained.progress, "line_quantiles": (PERCENTS / 10).tolist(), "corpus_sha256": "other"}
    assert limit_nats(Limit.parse("p99"), replace(trained, progress=stored), "--above") == pytest.approx(9.9)
    with pytest.raises(DataError) as error:
        limit_nats(Limit.parse("p99"), replace(trained, progress=stored | {"line_quantiles": None}), "--above")
    assert str(error.value).startswith("--above p99: the checkpoint holds no scores of validation lines, and they ")
    assert str(error.value).endswith("; allowed: bits or nats per character, such as 3.2bits")


def test_an_evaluation_scores_lines_spread_over_the_text(trained, monkeypatch):
    model, lines = of_lines(trained), words_text(9000).splitlines()
    ids = model.vocabulary.encode("\n" + "\n".join(lines) + "\n")
    nats = one_by_one(trained, [line.encode() for line in lines])
    truth = np.array([line_nats.mean() for line_nats in nats])
    score = evaluate(model.network, ids, model.device, per_line=True)
    np.testing.assert_allclose(score.line_nats, truth, rtol=1e-4)
    assert score.lines == len(lines)
    assert len(line_quantiles(score.line_nats)) == len(PERCENTS)
    monkeypatch.setattr("charlm.inference.evaluation._SAMPLE", 1)
    long = model.vocabulary.encode("\n" + "so tee " * 100 + "\n")
    assert evaluate(model.network, long, model.device, per_line=True).line_nats is None
    monkeypatch.setattr("charlm.inference.evaluation._SAMPLE", 900)
    some = evaluate(model.network, ids, model.device, per_line=True)
    assert 0 < len(some.line_nats) < len(lines) / 2
    assert all(np.isclose(truth, line_nats, rtol=1e-4).any() for line_nats in some.line_nats)
    assert some.nats_sum == score.nats_sum
