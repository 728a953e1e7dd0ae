"""Tensors of one card while this thread's current device is another: launches, streams, graphs.

Where there are no two cards, PyTorch's record of current devices and streams is replaced.
"""

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from charlm.gpu import graphs
from charlm.gpu.graphs import Graphs
from charlm.layers import RecurrentLayers
from tests.cells.measure import Case, own, random_input

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


class Cards:
    """Two cards: the current device, and the current stream of each; and graphs."""

    def __init__(self) -> None:
        self.current = 0
        self.streams = [0, 0]
        self.pools = 0
        self.captures: list[tuple[int, int, int]] = []
        """Card, stream and pool of memory of each."""
        self.capturing: Graph | None = None

    def exchange(self, index: int) -> int:
        before = self.current
        if index < 0:
            return -1
        self.current = index
        return before

    def current_stream(self, device: Any = None) -> Any:
        return SimpleNamespace(cuda_stream=self.streams[self.current if device is None else torch.device(device).index])

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before = self.current, list(self.streams)
        self.current, self.streams[stream.index] = stream.index, stream.cuda_stream
        yield
        self.current, self.streams = before

    def new_stream(self) -> Any:
        return SimpleNamespace(index=self.current, cuda_stream=99)

    def new_pool(self) -> int:
        self.pools += 1
        return self.pools


class Graph:
    """A graph of CUDA's. A capture in which something failed cannot be ended."""

    def __init__(self, cards: Cards) -> None:
        self.cards = cards
        self.is_valid = True

    def capture_begin(self, pool: int = 0, capture_error_mode: str = "global") -> None:
        self.cards.capturing = self
        self.cards.captures.append((self.cards.current, self.cards.streams[self.cards.current], pool))

    def capture_end(self) -> None:
        if not self.is_valid:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.cards.capturing = None

    def replay(self) -> None:
        pass


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cards]:
    """In place of CUDA."""
    cards = Cards()
    monkeypatch.setattr(torch.cuda, "_exchange_device", cards.exchange)
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", cards.exchange)
    monkeypatch.setattr(torch.cuda, "current_stream", cards.current_stream)
    monkeypatch.setattr(torch.cuda, "stream", cards.stream)
    monkeypatch.setattr(torch.cuda, "Stream", cards.new_stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(cards))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", cards.new_pool)
    monkeypatch.setattr(graphs, "_stream", graphs._stream.__wrapped__)  # not those of a card that is there
    return cards


def test_kernels_are_launched_on_the_card_of_the_tensors(
    case: Case, cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = pytest.importorskip("charlm.gpu.kernels")
    launched: list[int] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
            return lambda *arguments, **options: launched.append(cards.current)

    stack = case.build(5, 17, 1, zoneout=0.3, state=0.2).float()
    monkeypatch.setattr(kernels, "compiled", lambda passes, options: defaultdict(Kernel))
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: torch.cuda.device(SECOND))
    own(stack)(random_input(stack, 3, 2).float(), stack.zero_state(2))[0].sum().backward()
    assert set(launched) == {1}
    assert cards.current == 0


def test_only_a_recording_on_its_own_card_keeps_a_window_from_becoming_a_graph(
    cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: cards.current == 1)
    takes_graphs = RecurrentLayers.gpu_driver.takes_graphs
    assert (takes_graphs(FIRST), takes_graphs(SECOND)) == (True, False)
    monkeypatch.setenv("CHARLM_GRAPHS", "0")
    assert not takes_graphs(FIRST)


def test_a_graph_is_recorded_on_its_card_and_replayed_in_the_stream_for_which_it_was_recorded(cards: Cards) -> None:
    """In another one it could run while the first still uses its memory, which is that of the stream."""
    graphs = Graphs()
    for number, (stream, device) in enumerate(((5, SECOND), (6, SECOND), (5, SECOND), (5, FIRST))):
        cards.streams = [stream, stream]
        for call in ("call", "another", f"call {number}"):
            for _ in range(3):
                graphs.run(call, lambda: None, device)
    captures = [(1, 99, 1)] * 3 + [(1, 99, 2)] * 3 + [(1, 99, 1)] + [(0, 99, 3)] * 3
    assert cards.captures == captures
    assert graphs.replays == len(captures) + 2 * 3
    assert cards.current == 0


def test_a_recording_that_fails_leaves_the_random_generator_as_it_was(cards: Cards) -> None:
    """PyTorch's generator leaves a capture only where CUDA ends it without an error, which it refuses after one."""

    def launches() -> None:
        if cards.capturing:
            cards.capturing.is_valid = False
            raise RuntimeError("operation not permitted when stream is capturing")

    graphs = Graphs()
    for _ in range(2):
        graphs.run("call", launches, FIRST)
    assert cards.captures
    assert not cards.capturing


# Cards


def windows(stack: RecurrentLayers, x_TBI: Tensor, count: int = 6) -> list[Tensor]:
    """Outputs and gradients of windows, which from the third on are replayed."""

    def window() -> list[Tensor]:
        y_TBH, _ = own(stack)(x_TBI, stack.zero_state(x_TBI.shape[1]))
        gradients = torch.autograd.grad(y_TBH.square().sum(), list(stack.parameters()))
        return [tensor.detach().cpu() for tensor in (y_TBH, *gradients)]

    return [tensor for _ in range(count) for tensor in window()]


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two CUDA devices")
def test_a_thread_whose_current_device_is_another_card(case: Case) -> None:
    stack = case.build(17, 40, 2).float()
    x = random_input(stack, 5, 3).float()
    on_first, on_second = (copy.deepcopy(stack).to(device) for device in (FIRST, SECOND))
    expected = windows(on_first, x.to(FIRST))
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(windows, on_second, x.to(SECOND)).result()
        assert pool.submit(torch.cuda.current_device).result() == 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_streams_side_by_side_share_no_memory(case: Case) -> None:
    stacks = [case.build(17, 40, 2).float().cuda() for _ in range(2)]
    inputs = [random_input(stack, 64, 32).float() for stack in stacks]
    expected = [windows(stack, x) for stack, x in zip(stacks, inputs, strict=True)]
    torch.cuda.synchronize()

    def run(n: int) -> list[Tensor]:
        with torch.cuda.stream(torch.cuda.Stream()):
            return windows(stacks[n], inputs[n])

    with ThreadPoolExecutor(2) as pool:
        for found, one in zip(pool.map(run, range(2)), expected, strict=True):
            assert all(map(torch.equal, found, one))
