"""B streams side by side are the corpus, or its records in random order; targets are the inputs one character later."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.data import streams as streams_module
from charlm.data.streams import RecordStreams, Streams
from charlm.system.process_group import Shard

sizes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 400)).filter(
    lambda size: size[0] * size[1] + 1 <= size[2]
)


@settings(deadline=None)
@given(sizes, st.data())
def test_streams_end_to_end_are_the_corpus_less_a_tail_shorter_than_a_row(size, data):
    batch_size, bptt, n = size
    ids = np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8)
    streams = Streams(ids, batch_size, bptt)
    S = streams.length
    assert 0 <= n - 1 - batch_size * S < batch_size
    x_TB, y_TB = streams.read(0, S)
    assert x_TB.T.flatten().tolist() == ids[: batch_size * S].tolist()
    assert y_TB.T.flatten().tolist() == ids[1 : batch_size * S + 1].tolist()
    position = data.draw(st.integers(0, S - 1))
    steps = data.draw(st.integers(1, S - position))
    for window, whole in zip(streams.read(position, steps), (x_TB, y_TB), strict=True):
        assert torch.equal(window, whole[position : position + steps])
    assert streams.windows_per_epoch * bptt <= S < (streams.windows_per_epoch + 1) * bptt


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 3000), st.integers(1, 30_000), st.floats(0.05, 1))
def test_an_epoch_that_reads_a_share_sees_all_of_the_text(batch_size, bptt, characters, share):
    """The last piece ends with the stream, and the next epochs read what is between the pieces of the first."""
    stream = max(bptt, characters)
    streams = Streams(np.arange(batch_size * stream + 1), batch_size, bptt, share=share)
    assert bptt <= streams.length <= stream
    assert streams.length == pytest.approx(max(share * stream, bptt), rel=0.02, abs=stream // 1024 + bptt)

    def places(epoch):
        x_TB, y_TB = streams.read(0, streams.length, epoch=epoch)
        assert torch.equal(y_TB, x_TB + 1)
        assert torch.equal(x_TB - x_TB[:, :1], torch.arange(batch_size).expand_as(x_TB) * stream)
        return x_TB[:, 0]

    assert places(0)[-1] == stream - 1
    seen = torch.cat([places(epoch) for epoch in range(2 * math.ceil(1 / share))])
    assert seen.unique().tolist() == list(range(stream))


# Records in random order

END = 0


def text_of(records: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The ids of records without their ends, and where each starts."""
    ids = [END, *itertools.chain(*([*record, END] for record in records))]
    return np.array(ids, np.uint8), np.cumsum([1, *(len(record) + 1 for record in records)])


def some_records(count: int) -> list[list[int]]:
    draw = np.random.default_rng(count)
    return [draw.integers(1, 200, size=draw.integers(0, 10)).tolist() for _ in range(count)]


def stream_texts(streams: RecordStreams, epoch: int = 0) -> list[list[int]]:
    """All that each stream reads in an epoch, in windows of 7."""
    starts = range(0, streams.length, 7)
    windows = [streams.read(start, min(7, streams.length - start), epoch=epoch) for start in starts]
    x_TB, y_TB = (torch.cat(ids) for ids in zip(*windows, strict=True))
    assert torch.equal(x_TB[1:], y_TB[:-1])
    return torch.cat([x_TB[:1], y_TB]).T.tolist()


@pytest.fixture(params=[False, True], ids=["one group", "many groups"])
def groups(request, monkeypatch):
    """A text of one group of records, or of many."""
    if request.param:
        for name, value in {"_BLOCK": 4, "_GROUP": 3}.items():
            monkeypatch.setattr(streams_module, name, value)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("records", "batch_size"),
    [(some_records(200), 5), ([[1, 2, 3]], 1), ([[]] * 30, 1), ([[5] * 500, [6]], 1)],
    ids=["five streams", "one record", "empty records", "a long record"],
)
def test_streams_are_whole_records_each_about_once(records, batch_size):
    counts: Counter[tuple[int, ...]] = Counter()
    for text in stream_texts(RecordStreams(*text_of(records), batch_size, 2)):
        ends = [place for place, id in enumerate(text) if id == END]
        assert ends[0] == 0
        counts.update(tuple(text[start + 1 : end]) for start, end in itertools.pairwise(ends))
    wanted = Counter(map(tuple, records))
    missed, repeated = wanted - counts, counts - wanted  # a cut record is begun again
    assert set(counts) <= set(wanted)
    assert max(missed.total(), repeated.total()) <= batch_size


def test_epochs_differ_in_their_order_and_seeds_too():
    text = text_of(some_records(50))
    streams = RecordStreams(*text, 2, 5)
    first, second = stream_texts(streams), stream_texts(streams, epoch=1)
    assert first != second
    assert stream_texts(streams) == first
    assert stream_texts(RecordStreams(*text, 2, 5, seed=2)) != first
    assert [text[:8] for text in first] == [  # a run that resumes needs the same order in every version
        [0, 186, 22, 27, 83, 67, 187, 0],
        [0, 183, 49, 0, 88, 79, 117, 0],
    ]


@pytest.mark.usefixtures("groups")
def test_reading_on_from_anywhere_and_a_shard_are_as_reading_all_from_the_start():
    text = text_of(some_records(80))
    texts = stream_texts(RecordStreams(*text, 4, 5))
    for position in (0, 7, 55):
        x_TB, y_TB = RecordStreams(*text, 4, 5).read(position, 11)
        assert x_TB.T.tolist() == [stream[position : position + 11] for stream in texts]
        assert y_TB.T.tolist() == [stream[position + 1 : position + 12] for stream in texts]
    shards = [stream_texts(RecordStreams(*text, 4, 5, shard=Shard(index, 2))) for index in range(2)]
    assert shards[0] + shards[1] == texts
