"""Streams of lines in random order."""

import itertools
from collections import Counter

import numpy as np
import pytest

from charlm.data.lines import LineOrder, LineStreams, Shuffle
from charlm.errors import DataError
from charlm.system.process_group import Shard

NEWLINE = 0


def text_of(lines: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """The ids of lines without their newlines, and where each starts."""
    ids = [NEWLINE, *itertools.chain(*([*line, NEWLINE] for line in lines))]
    starts = np.cumsum([1, *(len(line) + 1 for line in lines)])
    return np.array(ids, np.uint8), starts


def some_lines(count: int, longest: int = 9) -> list[list[int]]:
    draw = np.random.default_rng(count)
    return [draw.integers(1, 200, size=draw.integers(0, longest + 1)).tolist() for _ in range(count)]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 16, 17, 1000, 4097])
def test_a_shuffle_is_a_permutation_that_depends_on_the_seed(n):
    orders = [Shuffle(n, (1, epoch))(np.arange(n)).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(n)) for order in orders)
    assert Shuffle(n, (1, 0))(np.arange(n)).tolist() == orders[0]
    if n >= 1000:
        assert len({tuple(order) for order in orders}) == 3


def test_every_place_gets_every_thing_equally_often():
    counts = np.zeros((6, 6), int)
    for seed in range(3000):
        counts[np.arange(6), Shuffle(6, (seed,))(np.arange(6)).astype(int)] += 1
    # 500 each with a standard deviation of 20.
    assert (np.abs(counts - 500) < 120).all(), counts


def test_large_shuffles_need_no_memory():
    shuffle = Shuffle(10**12, (1,))
    found = shuffle(np.arange(10**12 - 1000, 10**12))
    assert len(set(found.tolist())) == 1000
    assert found.max() < 10**12


def stream_texts(streams: LineStreams, steps: int, epoch: int = 0) -> list[list[int]]:
    """All that each stream reads in an epoch; inputs and targets must overlap."""
    texts = None
    for position in range(0, streams.length, steps):
        x_TB, y_TB = streams.read(position, min(steps, streams.length - position), epoch=epoch)
        assert (x_TB[1:] == y_TB[:-1]).all()
        if texts is None:
            texts = [[first] for first in x_TB[0].tolist()]
        for text, first, last in zip(texts, x_TB[0].tolist(), y_TB.T.tolist(), strict=True):
            assert text[-1] == first
            text.extend(last)
    assert texts is not None
    return texts


def lines_of(text: list[int]) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """The whole lines of a stream, and the beginning of the last, which is cut."""
    assert text[0] == NEWLINE
    lines: list[list[int]] = [[]]
    for symbol in text[1:]:
        if symbol == NEWLINE:
            lines.append([])
        else:
            lines[-1].append(symbol)
    *whole, last = map(tuple, lines)
    return whole, last


@pytest.fixture(params=[False, True], ids=["one group", "many groups"])
def groups(request, monkeypatch):
    """A text of one group of lines, or of many; streams that look far ahead, or not."""
    if request.param:
        for name, value in {"_BLOCK": 4, "_GROUP": 3, "_AHEAD": 2, "_CHARS": 5}.items():
            monkeypatch.setattr(f"charlm.data.lines.{name}", value)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("count", [1, 3, 12, 13, 201])
def test_an_order_has_every_line_once(count):
    _, starts = text_of(some_lines(count))
    order = LineOrder(starts, (1, 0))
    begins, ends, place = [], [], 0
    while place < order.lines:
        some_begins, some_ends = order.ahead(place)
        begins += some_begins.tolist()
        ends += some_ends.tolist()
        place += len(some_begins)
    assert sorted(begins) == starts[:-1].tolist()
    assert sorted(ends) == starts[1:].tolist()
    assert count < 12 or begins != sorted(begins)
    chars = [
        (place, end - begin, at)
        for place, (begin, end) in enumerate(zip(begins, ends, strict=True))
        for at in range(end - begin)
    ]
    assert [order.find(char) for char in range(order.chars)] == chars


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("steps", [1, 7, 64])
def test_streams_are_whole_lines_each_about_once(batch_size, steps):
    lines = some_lines(200)
    ids, starts = text_of(lines)
    streams = LineStreams(ids, starts, batch_size, 5)
    counts: Counter[tuple[int, ...]] = Counter()
    for text in stream_texts(streams, steps):
        assert len(text) == streams.length + 1
        whole, last = lines_of(text)
        counts.update(whole)
        assert not last or any(line[: len(last)] == list(last) for line in lines)
    wanted = Counter(map(tuple, lines))
    assert set(counts) <= set(wanted)
    assert (wanted - counts).total() <= batch_size
    assert (counts - wanted).total() <= batch_size


def test_epochs_differ_in_their_order_and_seeds_too():
    ids, starts = text_of(some_lines(50))
    streams = LineStreams(ids, starts, 2, 5)
    first, second = stream_texts(streams, 16), stream_texts(streams, 16, epoch=1)
    assert first != second
    assert stream_texts(streams, 16) == first
    assert stream_texts(LineStreams(ids, starts, 2, 5, seed=2), 16) != first


@pytest.mark.usefixtures("groups")
def test_reading_on_from_anywhere_is_as_reading_from_the_start():
    ids, starts = text_of(some_lines(80))
    texts = stream_texts(LineStreams(ids, starts, 3, 5), 10)
    for position in range(0, 60, 7):
        x_TB, y_TB = LineStreams(ids, starts, 3, 5).read(position, 11)
        assert x_TB.T.tolist() == [text[position : position + 11] for text in texts]
        assert y_TB.T.tolist() == [text[position + 1 : position + 12] for text in texts]


def test_parts_have_the_streams_of_the_whole():
    ids, starts = text_of(some_lines(80))
    texts = stream_texts(LineStreams(ids, starts, 4, 5), 10)
    parts = [stream_texts(LineStreams(ids, starts, 4, 5, shard=Shard(index, 2)), 10) for index in range(2)]
    assert parts[0] + parts[1] == texts


@pytest.mark.parametrize("lines", [[[1, 2, 3]], [[]] * 30, [[5] * 500, [6]]], ids=["one", "empty", "a long one"])
def test_odd_texts(lines):
    ids, starts = text_of(lines)
    for text in stream_texts(LineStreams(ids, starts, 1, 2), 7):
        whole, _ = lines_of(text)
        assert Counter(whole) == Counter(map(tuple, lines))


def test_too_few_characters():
    ids, starts = text_of([[1, 2]])
    with pytest.raises(DataError, match="train split: 4 characters; 2 streams of 5 steps need at least 11"):
        LineStreams(ids, starts, 2, 5)
