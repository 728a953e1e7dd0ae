"""Scores of lines as they come: each as if the others were not there."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from charlm.data.vocabulary import Vocabulary
from charlm.errors import DataError, VocabularyError
from charlm.inference import load
from charlm.inference.dynamic import Adaptation
from charlm.inference.evaluation import WARMUP, Cut, evaluate
from charlm.inference.line_quantiles import PERCENTS, Limit, line_quantiles
from charlm.inference.line_scores import LineScorer, Unknown
from charlm.model import build_model
from tests.text import words_text

LINES = [line.encode() for line in [*words_text(3000).splitlines(), "", "a", "tee. " * 60, "", words_text(6000)[:5000]]]
LINES = [line.replace(b"\n", b"") for line in LINES]
STRICT = Unknown()


@pytest.fixture
def trained(trained_run):
    model = load(trained_run, "cpu")
    with torch.no_grad():
        model.network.decoder.weight.mul_(6)
    return model


def of_lines(trained):
    network = copy.copy(trained.network)
    network.begins = int(trained.vocabulary.encode("\n")[0])
    return replace(trained, network=network)


def one_by_one(trained, lines):
    """Nats of every character of each line, its newline included, in float64."""
    network, found = copy.deepcopy(trained.network).double(), []
    network.begins = None
    for line in lines:
        ids = torch.from_numpy(trained.vocabulary.encode(f"\n{line.decode()}\n").astype(np.int64))
        with torch.no_grad():
            logits, _ = network(ids[:-1, None])
        found.append(F.cross_entropy(logits[:, 0], ids[1:], reduction="none").numpy())
    return found


def in_blocks(data, seed):
    """Blocks as `Arriving` yields them: of whole lines, or a part of a line."""
    draw, start = np.random.default_rng(seed), 0
    while start < len(data):
        end = start + int(draw.choice([1, 30, 700, 4000]))
        last = data.rfind(b"\n", start, end) + 1
        yield data[start : last or end]
        start = last or end


def scored(trained, blocks, unknown=STRICT, **options):
    return [each for found in LineScorer(trained, "log", unknown, **options).scores(blocks) for each in found]


def assert_scores(found, lines, truth):
    assert [each.number for each in found] == list(range(1, len(lines) + 1))
    assert [bytes(each.text) for each in found] == lines
    for each, nats in zip(found, truth, strict=True):
        assert each.chars == len(nats)
        assert each.nats == pytest.approx(nats.sum(), rel=1e-5)
        assert each.bits_per_char == pytest.approx(nats.mean() / np.log(2), rel=1e-5)
        if each.per_char_nats is not None:
            np.testing.assert_allclose(each.per_char_nats, nats, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["text", "lines"])
def test_each_line_is_scored_as_if_it_were_alone_however_the_blocks_are_cut(trained, kind, seed):
    model = trained if kind == "text" else of_lines(trained)
    data = b"\n".join(LINES) + b"\n" * (seed % 2)
    found = scored(model, in_blocks(data, seed), per_char=seed > 1)
    assert (found[0].per_char_nats is not None) == (seed > 1)
    assert_scores(found, LINES, one_by_one(trained, LINES))


def test_long_lines_are_read_in_parts_side_by_side(trained, monkeypatch):
    lines = [b"tee", words_text(50_000).replace("\n", " ").encode(), b"so"]
    truth = one_by_one(trained, lines)
    assert_scores(scored(trained, in_blocks(b"\n".join(lines), 1)), lines, truth)
    read, outputs = [], trained.network.outputs
    monkeypatch.setattr(trained.network, "outputs", lambda x, *state: read.append(tuple(x.shape)) or outputs(x, *state))
    scored(trained, [b"\n".join(lines)])
    assert max(B for _, B in read) == 12


@pytest.mark.parametrize("seed", range(30))
def test_parts_of_lines_are_a_partition_and_begin_with_lines_if_these_are_short(seed):
    draw = np.random.default_rng(seed)
    longest = int(draw.choice([3, 100, 5000, 100_000]))
    ids = np.concatenate([[0], *(np.append(np.ones(n, np.uint8), 0) for n in draw.integers(0, longest, 40))])
    read = int(draw.choice([1, 200]))
    ids = np.concatenate([np.ones(read - 1, np.uint8), ids])
    cut = Cut.of_lines(ids, read, 64, 0)
    assert cut.begin_B[0] == read - 1
    np.testing.assert_array_equal(cut.begin_B[:-1] + cut.length_B[:-1], cut.begin_B[1:])
    assert cut.begin_B[-1] + cut.length_B[-1] == len(ids) - 1
    assert (cut.length_B > 0).all()
    assert cut.longest <= -(-cut.targets // len(cut.begin_B)) + 4096 + longest * (longest < 4096)
    inside = ids[cut.begin_B] != 0
    assert cut.warmup == (WARMUP if inside.any() else 0)
    assert longest > 4096 or not inside.any()


def test_an_empty_input_has_no_lines(trained):
    assert scored(trained, []) == []
    assert [each.chars for each in scored(trained, [b"\n\n"])] == [1, 1]


def test_characters_that_the_model_does_not_know(trained):
    lines = ["so tee", "so Zé, tee", "so"]
    data = "\n".join(lines).encode()
    for blocks in ([data], [b"so tee\n", b"so Z", "é, tee\nso".encode()]):
        before = []
        with pytest.raises(VocabularyError) as error:
            before += LineScorer(trained, "log", STRICT).scores(blocks)
        assert str(error.value).startswith("log, line 2: found ")
        assert "'Z' (U+005A)" in str(error.value)
        assert str(error.value).endswith("; --skip-unknown leaves others out, --unknown-as BITS counts them")
        stream = LineScorer(trained, "log", STRICT).scores(blocks)
        assert [bytes(each.text) for each in next(stream)] == [b"so tee"]

        known = [line.translate({ord(c): None for c in "Zé,"}).encode() for line in lines]
        truth = one_by_one(trained, known)
        skipped = scored(trained, blocks, Unknown(skip=True), per_char=True)
        assert_scores(skipped, [line.encode() for line in lines], truth)
        counted = scored(trained, blocks, Unknown(nats=7.0), per_char=True)
        with_them = np.concatenate([truth[1][:3], [7.0] * 3, truth[1][3:]])
        assert_scores(counted, [line.encode() for line in lines], [truth[0], with_them, truth[2]])


def test_bytes_that_are_not_utf8_are_characters_that_the_model_does_not_know(trained):
    with pytest.raises(VocabularyError, match=r"^log, line 2: found 'Z' \(U\+005A\), byte 0xE9 \(not UTF-8\), which "):
        scored(trained, [b"so\nt\xe9eZ\n"])
    [_, line] = scored(trained, [b"so\nt\xe9e\n"], Unknown(skip=True))
    assert (bytes(line.text), line.chars) == (b"t\xe9e", 3)


def test_a_byte_order_mark_is_no_character_and_a_carriage_return_is_one(trained):
    assert [each.text for each in scored(trained, [b"\xef\xbb\xbfso\n"])] == [b"so"]
    with pytest.raises(VocabularyError, match=r"^log, line 1: found '\\r' \(U\+000D\), which the model has never seen"):
        scored(trained, [b"so\r\n"])


def test_a_byte_model_scores_bytes(trained):
    torch.manual_seed(1)
    network = build_model(trained.config.model, 256).eval()
    model = replace(trained, network=network, vocabulary=Vocabulary.of_bytes())
    found = scored(model, [b"\xef\xbb\xbf\xff\r\n\xc3", b"\xa9"])
    assert [(bytes(each.text), each.chars) for each in found] == [(b"\xef\xbb\xbf\xff\r", 6), (b"\xc3\xa9", 3)]


def test_a_model_that_has_never_seen_a_newline(trained):
    vocabulary = Vocabulary("char", trained.vocabulary.characters.replace("\n", "X"))
    with pytest.raises(VocabularyError, match=r": the model has never seen a newline, .*; leave out --lines$"):
        LineScorer(replace(trained, vocabulary=vocabulary), "log", STRICT)


# Learning

FAST = Adaptation(lr=0.02, decay=0.001, steps=64)


def test_it_learns_from_segments_that_it_has_scored(trained):
    weights = [parameter.clone() for parameter in trained.network.parameters()]
    lines = [b"mmm lll rrr"] * 100
    data = b"\n".join(lines)
    static, dynamic = scored(trained, [data]), scored(trained, [data], adaptation=FAST)
    nats = np.array([each.nats for each in dynamic])
    np.testing.assert_allclose(nats[:16], static[0].nats, rtol=1e-5)
    by_segment = nats[:96].reshape(6, 16)
    np.testing.assert_allclose(by_segment, by_segment[:, :1].repeat(16, 1), rtol=1e-5)
    assert (np.diff(by_segment[:, 0]) < 0).all()
    for parameter, before in zip(trained.network.parameters(), weights, strict=True):
        assert torch.equal(parameter, before)


def test_what_it_learns_does_not_depend_on_when_the_lines_come(trained):
    data = b"\n".join([*LINES, b"", *LINES])
    whole = scored(trained, [data], adaptation=FAST)
    by_line = scored(trained, [line + b"\n" for line in data.split(b"\n")], adaptation=FAST)
    np.testing.assert_allclose([each.nats for each in by_line], [each.nats for each in whole], rtol=1e-3)
    assert whole[-1].nats < 0.99 * scored(trained, [data])[-1].nats


def test_parts_of_a_long_line_are_learned_too(trained):
    line = words_text(6000).replace("\n", " ").encode()
    parts = [line[:3000], line[3000:] + b"\n"]
    [static], [dynamic] = scored(trained, parts), scored(trained, parts, adaptation=FAST)
    assert (dynamic.text, dynamic.chars) == (line, len(line) + 1)
    assert dynamic.nats < 0.99 * static.nats


def test_the_weights_are_put_back_after_an_error(trained):
    weights = [parameter.clone() for parameter in trained.network.parameters()]
    with pytest.raises(VocabularyError):
        scored(trained, [b"so\n" * 40 + b"Z\n"], adaptation=FAST)
    for parameter, before in zip(trained.network.parameters(), weights, strict=True):
        assert torch.equal(parameter, before)


# Limits


@pytest.mark.parametrize(
    ("text", "nats"), [("3", 3 * np.log(2)), ("3.5bits", 3.5 * np.log(2)), (".5nats", 0.5), ("2nats", 2.0)]
)
def test_limits(text, nats):
    assert Limit.parse(text).nats(None, "--above") == pytest.approx(nats)


@pytest.mark.parametrize("text", ["", "p", "p101", "-1", "3 bits", "p9bits", "nan", "1e3", "bits", "٣"])
def test_what_is_no_limit(text):
    with pytest.raises(ValueError, match=r"allowed: bits per character \(3.2 or 3.2bits\), nats per character"):
        Limit.parse(text)


def test_percentiles_are_those_of_the_validation_lines(trained, monkeypatch):
    text = trained.vocabulary.decode(trained.split("valid"))
    lines = text.split("\n")[1:-1]
    truth = [nats.mean() for nats in one_by_one(trained, [line.encode() for line in lines])]
    for percent in (0, 12.5, 50, 99, 99.95):
        found = Limit.parse(f"p{percent}").nats(trained, "--above")
        assert found == pytest.approx(np.quantile(truth, percent / 100), rel=0.02)
    kept = replace(trained, progress={**trained.progress, "line_quantiles": [p / 10 for p in PERCENTS]})
    monkeypatch.setattr("charlm.inference.line_quantiles._validation_lines", None)
    assert Limit.parse("p99").nats(kept, "--above") == pytest.approx(9.9)


def test_percentiles_that_cannot_be_found(trained):
    changed = replace(trained, progress={**trained.progress, "corpus_sha256": "other"})
    with pytest.raises(DataError) as error:
        Limit.parse("p99").nats(changed, "--above")
    assert str(error.value).startswith("--above p99: the checkpoint holds no scores of validation lines, and they ")
    assert str(error.value).endswith("; allowed: bits or nats per character, such as 3.2bits")


def test_an_evaluation_finds_the_scores_of_lines_spread_over_the_text(trained, monkeypatch):
    model = of_lines(trained)
    lines = words_text(9000).splitlines()
    ids = model.vocabulary.encode("\n" + "\n".join(lines) + "\n")
    truth = np.array([nats.mean() for nats in one_by_one(trained, [line.encode() for line in lines])])
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
    assert all(np.isclose(truth, each, rtol=1e-4).any() for each in some.line_nats)
    assert some.nats_sum == score.nats_sum


@pytest.mark.parametrize("seed", range(2))
def test_a_model_that_reads_backward_scores_lines_from_their_ends(trained, seed):
    forward = of_lines(trained)
    backward = replace(forward, vocabulary=replace(forward.vocabulary, direction="backward"))
    turned = scored(forward, [b"".join(line[::-1] + b"\n" for line in LINES)], per_char=True)
    found = scored(backward, in_blocks(b"\n".join(LINES), seed), per_char=True)
    assert [bytes(each.text) for each in found] == LINES
    for each, other in zip(found, turned, strict=True):
        assert (each.number, each.chars) == (other.number, other.chars)
        assert each.nats == pytest.approx(other.nats, rel=1e-6)
        np.testing.assert_allclose(each.per_char_nats[::-1], other.per_char_nats, rtol=1e-4, atol=1e-5)
