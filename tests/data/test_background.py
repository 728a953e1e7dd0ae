"""What runs beside the reading of a text: in order, with its errors, and gone with the block that began it."""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from charlm.data import background
from charlm.data.background import CALLS_BEHIND, in_background
from charlm.data.cache import Draft


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def fail() -> None:
    raise OSError("full")


def test_the_calls_run_in_order_in_another_thread_and_are_over_with_the_block():
    seen: list[int] = []
    threads = set()
    with in_background() as later:
        for number in range(100):
            later(seen.append, number)
            later(lambda: threads.add(threading.get_ident()))
    assert seen == list(range(100))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_the_caller_is_only_so_far_ahead():
    done = threading.Semaphore(0)
    begun: list[int] = []

    def work(number: int) -> None:
        done.acquire()
        begun.append(number)

    with in_background() as later:
        for number in range(CALLS_BEHIND):
            later(work, number)
        timer = threading.Timer(0.05, done.release)
        timer.start()
        later(work, CALLS_BEHIND)
        assert begun == [0]
        timer.join()
        done.release(CALLS_BEHIND)
    assert begun == list(range(CALLS_BEHIND + 1))


def test_the_error_of_the_last_call_comes_out_at_the_end_of_the_block():
    with pytest.raises(OSError, match="full"), in_background() as later:
        later(fail)


def test_the_error_of_an_early_call_comes_out_of_a_later_one():
    calls = itertools.count()

    def go_on() -> None:
        with in_background() as later:
            later(fail)
            while next(calls) < 1000:
                later(int)

    with pytest.raises(OSError, match="full"):
        go_on()
    assert next(calls) == CALLS_BEHIND


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_a_block_that_is_left_waits_for_the_call_under_way_and_drops_the_others(error, monkeypatch):
    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            left.set()
            super().shutdown(wait=wait)

    def work() -> None:
        begun.set()
        left.wait()
        time.sleep(0.05)
        seen.append("first")

    def leave() -> None:
        with in_background() as later:
            later(work)
            later(seen.append, "second")
            begun.wait()
            raise error

    begun, left = threading.Event(), threading.Event()
    seen: list[str] = []
    monkeypatch.setattr(background, "ThreadPoolExecutor", Pool)
    with pytest.raises(error):
        leave()
    assert seen == ["first"]


narrow = st.integers(0, 0xFF)
code_points = st.one_of(narrow, st.integers(0, 0xFFFF), st.integers(0, 0x10FFFF))
blocks = st.one_of(st.lists(code_points, max_size=40), st.lists(narrow, max_size=40))


@settings(deadline=None)
@given(st.lists(blocks, max_size=5))
@example([[0x61] * 31 + [0x10FFFF], [0x61] * 16 + [0xFFFF], [0x4E2D] * 15 + [0x10000], [0x4E2D] * 16 + [0x10000], []])
@example([[0xFF, 0x100], [0xFF] * 15 + [0x100], [0xFFFF, 0x10000], []])
def test_a_draft_gives_back_what_it_was_given(tmp_path_factory, blocks):
    folder = tmp_path_factory.mktemp("draft")
    draft = Draft(folder)
    for block in blocks:
        draft.append(np.array(block, np.uint8 if max(block, default=0) < 0x80 else np.uint32))
    assert list(folder.iterdir()) == []
    for _ in range(2):
        assert [block.tolist() for block in draft.read()] == blocks
    draft.close()


@pytest.mark.parametrize(
    ("text", "bytes_a_character"),
    [
        ("e" * 1600, 1),
        ("ÿ" * 1600, 1),
        ("e" * 1500 + "中" * 100, 1.75),
        ("e" * 1499 + "中" * 101, 2),
        ("\uffff" * 1600, 2),
    ],
)
def test_a_draft_is_small(text, bytes_a_character, tmp_path):
    draft = Draft(tmp_path)
    draft.append(np.array(list(map(ord, text)), np.uint32))
    assert draft._file.tell() == len(text) * bytes_a_character
    draft.close()
