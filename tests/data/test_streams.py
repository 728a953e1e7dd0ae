"""B streams side by side are the corpus, and targets are the inputs one character later."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from charlm.data.streams import Streams
from charlm.errors import DataError
from tests.corpora import load_corpus

sizes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 400)).filter(
    lambda size: size[0] * size[1] + 1 <= size[2]
)


def refused(*args, **kwargs) -> str:
    with pytest.raises(DataError) as caught:
        Streams(*args, **kwargs)
    return str(caught.value)


@settings(deadline=None)
@given(sizes)
def test_streams_end_to_end_are_the_corpus_less_a_tail_shorter_than_a_row(size):
    batch_size, bptt, n = size
    ids = np.arange(n, dtype=np.uint16)
    streams = Streams(ids, batch_size, bptt)
    x_TB, y_TB = streams.read(0, streams.length)
    assert x_TB.T.flatten().tolist() == ids[: batch_size * streams.length].tolist()
    assert y_TB.T.flatten().tolist() == ids[1 : batch_size * streams.length + 1].tolist()
    assert 0 <= n - 1 - batch_size * streams.length < batch_size


@settings(deadline=None)
@given(sizes)
def test_windows_joined_are_the_whole(size):
    batch_size, bptt, n = size
    streams = Streams(np.arange(n, dtype=np.uint32), batch_size, bptt)
    assert streams.windows_per_epoch * bptt <= streams.length < (streams.windows_per_epoch + 1) * bptt
    windows = [streams.read(index * bptt, bptt) for index in range(streams.windows_per_epoch)]
    for number, part in enumerate(zip(*windows, strict=True)):
        whole = streams.read(0, streams.windows_per_epoch * bptt)[number]
        torch.testing.assert_close(torch.cat(part), whole, rtol=0, atol=0)


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 3000), st.integers(1, 30_000), st.floats(0, 1, exclude_min=True))
def test_an_epoch_that_reads_a_share_sees_all_of_the_text(batch_size, bptt, characters, share):
    """The last piece ends with the stream, and the next epochs read what is between the pieces of the first."""
    stream = max(bptt, characters)
    ids = np.arange(batch_size * stream + 1)
    streams = Streams(ids, batch_size, bptt, share=share)
    assert bptt <= streams.length <= stream
    assert streams.length == pytest.approx(max(share * stream, bptt), rel=0.02, abs=stream // 1024 + bptt)

    def places(epoch):
        x_TB, y_TB = streams.read(0, streams.length, epoch=epoch)
        assert torch.equal(y_TB, x_TB + 1)
        assert torch.equal(x_TB - x_TB[:, :1], torch.arange(batch_size).expand_as(x_TB) * stream)
        return x_TB[:, 0]

    first = places(0)
    assert first[-1] == stream - 1
    seen = torch.cat([places(epoch) for epoch in range(2 * math.ceil(1 / share))]) if share > 0.05 else first
    assert share <= 0.05 or seen.unique().tolist() == list(range(stream))


def test_windows_go_on_over_the_gap_between_two_pieces():
    streams = Streams(np.arange(8193), 1, 64, share=0.5)
    whole = streams.read(0, streams.length)[0]
    joined = torch.cat([streams.read(start, min(100, streams.length - start))[0] for start in range(0, 4096, 100)])
    assert torch.equal(joined, whole)
    assert (whole.flatten().diff() == 1).sum() == 4095 - 3
    assert whole[::1024].flatten().tolist() == [1024, 3072, 5120, 7168]
    assert streams.read(0, 1, epoch=1)[0].item() == 0


@settings(deadline=None)
@given(sizes, st.data())
def test_a_window_of_any_place_and_length(size, data):
    batch_size, bptt, n = size
    ids = np.random.default_rng(n).integers(0, 256, n, dtype=np.uint8)
    streams = Streams(ids, batch_size, bptt)
    position = data.draw(st.integers(0, streams.length - 1))
    steps = data.draw(st.integers(1, streams.length - position))
    x_TB, y_TB = streams.read(position, steps)
    for tensor in (x_TB, y_TB):
        assert tensor.dtype == torch.long
        assert tensor.shape == (steps, batch_size)
        assert tensor.is_contiguous()
    for b in range(batch_size):
        start = b * streams.length + position
        assert x_TB[:, b].tolist() == ids[start : start + steps].tolist()
        assert y_TB[:, b].tolist() == ids[start + 1 : start + steps + 1].tolist()


def test_a_window_owns_its_numbers():
    ids = np.arange(20, dtype=np.int64)
    streams = Streams(ids, 1, 4)
    assert not streams._ids_BS.flags.writeable
    x_TB, _ = streams.read(0, 4)
    x_TB.zero_()
    assert ids.tolist() == list(range(20))


def test_streams_of_a_mapped_split_read_only_their_own_part(write):
    text = "".join(chr(0x100 + i) for i in range(1000))
    corpus = load_corpus(write("text", text), level="char", split=(0.9, 0.1, 0.0))
    streams = Streams(corpus.splits["valid"], 3, 8, "valid split")
    assert np.shares_memory(streams._ids_BS, corpus.splits["valid"])
    assert streams.length == 33
    assert corpus.vocabulary.decode(streams.read(0, 33)[0].T.flatten().tolist()) == text[900:999]
    assert corpus.vocabulary.decode(streams.read(0, 33)[1].T.flatten().tolist()) == text[901:1000]


def test_every_other_id_can_be_streamed():
    ids = np.arange(40, dtype=np.uint8)[::2]
    assert Streams(ids, 2, 3).read(1, 2)[0].tolist() == [[2, 20], [4, 22]]


def test_the_least_text_is_enough_and_one_character_less_is_refused():
    assert Streams(np.zeros(2049, np.uint8), 32, 64).windows_per_epoch == 1
    assert refused(np.zeros(2048, np.uint8), 32, 64) == (
        "train split: 2,048 characters; 32 streams of 64 steps need at least 2,049; "
        "lower train.batch_size or train.bptt, or use more text (data.split)"
    )


def test_a_split_that_is_too_small_is_named():
    assert refused(np.zeros(0, np.uint8), 1, 1, name="valid split") == (
        "valid split: 0 characters; 1 stream of 1 step need at least 2; "
        "lower train.batch_size or train.bptt, or use more text (data.split)"
    )


@pytest.mark.parametrize(("position", "steps"), [(-1, 2), (0, 0), (0, 10), (8, 2), (9, 1)])
def test_reading_beyond_a_stream_is_a_programmers_mistake(position, steps):
    streams = Streams(np.arange(19, dtype=np.uint8), 2, 3)
    assert streams.length == 9
    with pytest.raises(AssertionError):
        streams.read(position, steps)


def test_a_device_that_is_the_cpu():
    streams = Streams(np.arange(19, dtype=np.uint8), 2, 3)
    for device in ("cpu", torch.device("cpu")):
        assert [tensor.tolist() for tensor in streams.read(2, 2, device)] == [[[2, 11], [3, 12]], [[3, 12], [4, 13]]]


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
