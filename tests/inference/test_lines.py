"""Scores of lines as they come: each as if the others were not there."""

import copy
import itertools

import numpy as np
import pytest
import torch

from charlm.data.reading import as_in_training, whole_lines
from charlm.errors import VocabularyError
from charlm.inference.texts import score_lines
from tests.inference.models import alone
from tests.text import words_text

LINES = [line.encode() for line in [*words_text(3000).splitlines(), "", "a", "tee. " * 60, "", words_text(3000)]]
LINES = [line.replace(b"\n", b"") for line in LINES]


@pytest.fixture
def trained(model):
    with torch.no_grad():
        model.network.decoder.weight.mul_(6)
    return model


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
    lines = whole_lines(as_in_training(blocks, trained.vocabulary.level, trained.config.data.unit, "log"))
    return [*itertools.chain(*score_lines(trained.network, trained.vocabulary, lines, "log", **options))]


def assert_scores(scores, lines, truth):
    assert [line.encode("utf-8", "surrogateescape") for line, _, _ in scores] == lines
    for (_, nats, _), expected in zip(scores, truth, strict=True):
        np.testing.assert_allclose(nats, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("is_line_model", [False, True], ids=["text", "lines"])
def test_each_line_is_scored_as_if_it_were_alone_however_the_blocks_are_cut(trained, is_line_model):
    if is_line_model:
        trained.network.reset_id = int(trained.vocabulary.encode("\n")[0])
    assert_scores(scored(trained, in_blocks(b"\n".join(LINES), int(is_line_model))), LINES, one_by_one(trained, LINES))
    assert scored(trained, []) == []
    assert [len(nats) for _, nats, _ in scored(trained, [b"\n\n"])] == [1, 1]


def test_a_long_line_is_read_in_windows_with_bounded_memory(trained, monkeypatch):
    lines = [b"tee", words_text(20_000).replace("\n", " ").encode(), b"so"]
    shapes, outputs = [], trained.network.outputs
    monkeypatch.setattr(
        trained.network, "outputs", lambda x, *state: shapes.append(tuple(x.shape)) or outputs(x, *state)
    )
    assert [len(nats) for _, nats, _ in scored(trained, in_blocks(b"\n".join(lines), 1))] == [4, 20_001, 3]
    assert max(T * B for T, B in shapes) <= 2**14


def test_unknown_characters_are_refused_or_have_the_score_that_the_user_gives_them(trained):
    lines = ["so tee", "so Zé, tee", "so"]
    truth = one_by_one(trained, [line.translate({ord(c): None for c in "Zé,"}).encode() for line in lines])
    with_unknown = np.concatenate([truth[1][:3], [7.0] * 3, truth[1][3:]])
    for blocks in (["\n".join(lines).encode()], [b"so tee\n", b"so Z", "é, tee\nso".encode()]):
        with pytest.raises(VocabularyError):
            scored(trained, blocks)
        counted = scored(trained, blocks, unknown_nats=7.0)
        assert_scores(counted, [line.encode() for line in lines], [truth[0], with_unknown, truth[2]])


def test_bytes_that_are_no_text_and_line_ends_of_windows_are_unknown_too(trained):
    [_, (line, nats, unknown)] = scored(trained, [b"so\nt\xe9e\n"], unknown_nats=7.0)
    assert (line, len(nats), unknown) == ("t\udce9e", 4, "\udce9")
    assert [line for line, _, _ in scored(trained, [b"\xef\xbb\xbfso\n"])] == ["so"]
    with pytest.raises(VocabularyError):
        scored(trained, [b"so\r\n"])
