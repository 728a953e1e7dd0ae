"""Scores of records as they come: each as if the others were not there."""

import copy
import itertools

import numpy as np
import pytest
import torch

from charlm.data.reading import as_in_training, whole_records
from charlm.errors import VocabularyError
from charlm.inference.texts import score_records
from tests.inference.models import alone
from tests.text import words_text

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


def test_unknown_characters_are_refused_or_have_the_score_that_the_user_gives_them(trained):
    records = ["so tee", "so Zé, tee", "so"]
    truth = one_by_one(trained, [record.translate({ord(c): None for c in "Zé,"}).encode() for record in records])
    with_unknown = np.concatenate([truth[1][:3], [7.0] * 3, truth[1][3:]])
    for blocks in (["\n".join(records).encode()], [b"so tee\n", b"so Z", "é, tee\nso".encode()]):
        with pytest.raises(VocabularyError):
            scored(trained, blocks)
        counted = scored(trained, blocks, unknown_nats=7.0)
        assert_scores(counted, [record.encode() for record in records], [truth[0], with_unknown, truth[2]])
