"""B streams side by side are the corpus, or its lines in random order; targets are the inputs one character later."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.data import streams as streams_module
from charlm.data.streams import LineStreams, Streams, line_order
from charlm.errors import DataError
from charlm.system.process_group import Shard

NEWLINE = 0
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
        assert window.dtype == torch.long
        assert window.is_contiguous()
        assert torch.equal(window, whole[position : position + steps])
    assert streams.windows_per_epoch * bptt <= S < (streams.windows_per_epoch + 1) * bptt


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 3000), st.integers(1, 30_000), st.floats(0, 1, exclude_min=True))
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
    if share > 0.05:
        seen = torch.cat([places(epoch) for epoch in range(2 * math.ceil(1 / share))])
        assert seen.unique().tolist() == list(range(stream))


def test_windows_go_on_over_the_gap_between_two_pieces():
    streams = Streams(np.arange(8193), 1, 64, share=0.5)
    whole = streams.read(0, streams.length)[0]
    joined = torch.cat([streams.read(start, min(100, streams.length - start))[0] for start in range(0, 4096, 100)])
    assert torch.equal(joined, whole)
    assert (whole.flatten().diff() == 1).sum() == 4095 - 3
    assert whole[::1024].flatten().tolist() == [1024, 3072, 5120, 7168]
    assert streams.read(0, 1, epoch=1)[0].item() == 0


def test_the_least_text_is_enough_and_one_character_less_is_refused():
    assert Streams(np.zeros(2049, np.uint8), 32, 64).windows_per_epoch == 1
    with pytest.raises(DataError):
        Streams(np.zeros(2048, np.uint8), 32, 64)
    with pytest.raises(DataError):
        LineStreams(*text_of([[1, 2]]), 2, 5)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_windows_on_the_gpu_are_those_on_the_cpu():
    streams = Streams(np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8), 32, 50)
    positions = range(0, streams.length - 50, 50)
    on_gpu = [streams.read(position, 50, "cuda") for position in positions]  # many copies under way at once
    for position, (x_TB, y_TB) in zip(positions, on_gpu, strict=True):
        expected_x_TB, expected_y_TB = streams.read(position, 50)
        assert x_TB.is_cuda
        torch.testing.assert_close(x_TB.cpu(), expected_x_TB, rtol=0, atol=0)
        torch.testing.assert_close(y_TB.cpu(), expected_y_TB, rtol=0, atol=0)


# Lines in random order


def text_of(lines: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The ids of lines without their newlines, and where each starts."""
    ids = [NEWLINE, *itertools.chain(*([*line, NEWLINE] for line in lines))]
    return np.array(ids, np.uint8), np.cumsum([1, *(len(line) + 1 for line in lines)])


def some_lines(count: int) -> list[list[int]]:
    draw = np.random.default_rng(count)
    return [draw.integers(1, 200, size=draw.integers(0, 10)).tolist() for _ in range(count)]


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("n", [1, 2, 255, 257, 4097])
def test_the_order_of_lines_is_a_permutation_that_depends_on_the_seed(n):
    orders = [line_order(n, (1, epoch)).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(n)) for order in orders)
    assert line_order(n, (1, 0)).tolist() == orders[0]
    if n >= 255:
        assert len({tuple(order) for order in orders}) == 3


def test_the_order_of_lines_is_fair():
    counts = np.zeros((6, 6), int)
    for seed in range(1200):
        counts[np.arange(6), line_order(6, (seed,))] += 1
    assert (np.abs(counts - 200) < 76).all(), counts  # 200 each with a standard deviation of 13


def test_lines_of_a_large_text_come_from_all_over_it_and_few_places_at_a_time():
    lines = 1 << 20
    order = line_order(lines, (1,), np.uint32)
    group = order[: 1 << 18]
    assert order.dtype == np.uint32
    assert len(np.unique(group // 256)) == 1024
    assert np.abs(np.bincount(group // (1 << 18), minlength=4) / (1 << 18) - 0.25).max() < 0.05


def stream_texts(streams: LineStreams, steps: int, epoch: int = 0) -> list[list[int]]:
    """All that each stream reads in an epoch; inputs and targets must overlap."""
    windows = [
        streams.read(position, min(steps, streams.length - position), epoch=epoch)
        for position in range(0, streams.length, steps)
    ]
    x_TB, y_TB = (torch.cat(ids) for ids in zip(*windows, strict=True))
    assert torch.equal(x_TB[1:], y_TB[:-1])
    return torch.cat([x_TB[:1], y_TB]).T.tolist()


def lines_of(text: list[int]) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """The whole lines of a stream, and the beginning of the last, which is cut."""
    _, *whole, last = map(tuple, "".join(map(chr, text)).split(chr(NEWLINE)))
    return [tuple(map(ord, line)) for line in whole], tuple(map(ord, last))


@pytest.fixture(params=[False, True], ids=["one group", "many groups"])
def groups(request, monkeypatch):
    """A text of one group of lines, or of many."""
    if request.param:
        for name, value in {"_BLOCK": 4, "_GROUP": 3}.items():
            monkeypatch.setattr(streams_module, name, value)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(("batch_size", "steps"), [(1, 64), (2, 1), (5, 7)])
def test_streams_are_whole_lines_each_about_once(batch_size, steps):
    lines = some_lines(200)
    streams = LineStreams(*text_of(lines), batch_size, 5)
    counts: Counter[tuple[int, ...]] = Counter()
    for text in stream_texts(streams, steps):
        assert len(text) == streams.length + 1
        assert text[0] == NEWLINE
        whole, last = lines_of(text)
        counts.update(whole)
        assert not last or any(line[: len(last)] == list(last) for line in lines)
    wanted = Counter(map(tuple, lines))
    assert set(counts) <= set(wanted)
    assert (wanted - counts).total() <= batch_size
    assert (counts - wanted).total() <= batch_size


def test_epochs_differ_in_their_order_and_seeds_too():
    text = text_of(some_lines(50))
    streams = LineStreams(*text, 2, 5)
    first, second = stream_texts(streams, 16), stream_texts(streams, 16, epoch=1)
    assert first != second
    assert stream_texts(streams, 16) == first
    assert stream_texts(LineStreams(*text, 2, 5, seed=2), 16) != first
    assert [text[:8] for text in first] == [  # a run that resumes needs the same order in every version
        [0, 186, 22, 27, 83, 67, 187, 0],
        [0, 183, 49, 0, 88, 79, 117, 0],
    ]


@pytest.mark.usefixtures("groups")
def test_reading_on_from_anywhere_and_a_shard_are_as_reading_all_from_the_start():
    text = text_of(some_lines(80))
    texts = stream_texts(LineStreams(*text, 4, 5), 10)
    for position in range(0, 60, 7):
        x_TB, y_TB = LineStreams(*text, 4, 5).read(position, 11)
        assert x_TB.T.tolist() == [stream[position : position + 11] for stream in texts]
        assert y_TB.T.tolist() == [stream[position + 1 : position + 12] for stream in texts]
    shards = [stream_texts(LineStreams(*text, 4, 5, shard=Shard(index, 2)), 10) for index in range(2)]
    assert shards[0] + shards[1] == texts


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("lines", [[[1, 2, 3]], [[]] * 30, [[5] * 500, [6]]], ids=["one", "empty", "a long one"])
def test_odd_texts(lines):
    for text in stream_texts(LineStreams(*text_of(lines), 1, 2), 7):
        assert Counter(lines_of(text)[0]) == Counter(map(tuple, lines))
