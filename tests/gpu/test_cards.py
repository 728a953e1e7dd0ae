"""Tensors of one card while this thread's current device is another: launches, streams, buffers, graphs.

Where there are no two cards, PyTorch's record of current devices and streams is replaced.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from charlm.cells.window import LoopInputs
from charlm.gpu import graphs
from charlm.gpu.graphs import Graphs, Recorder
from charlm.layers import RecurrentLayers
from charlm.layers.buffers import BufferCache
from charlm.layers.recurrence import choose_buffers
from tests.cells.measure import Case, own, random_input

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


class Cards(threading.local):
    """Two cards: a thread's current device, and its current stream of each."""

    def __init__(self) -> None:
        self.current = 0
        self.streams = [0, 0]

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


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    cards = Cards()
    monkeypatch.setattr(torch.cuda, "_exchange_device", cards.exchange)
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", cards.exchange)
    monkeypatch.setattr(torch.cuda, "current_stream", cards.current_stream)
    monkeypatch.setattr(torch.cuda, "stream", cards.stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return cards


def in_a_thread(function: Callable[[], Any]) -> Any:
    """The function's result in a new thread, whose current device is the first."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


# Launches


@pytest.mark.parametrize("replays", [False, True])
def test_kernels_are_launched_on_the_card_of_the_tensors(
    case: Case, cards: Cards, monkeypatch: pytest.MonkeyPatch, replays: bool
) -> None:
    kernels = pytest.importorskip("charlm.gpu.kernels")
    launched: list[int] = []

    class Function:
        def __getitem__(self, grid: tuple[int]) -> Any:
            return lambda *arguments, **options: launched.append(cards.current)

    class Compiled(dict[str, Function]):
        def __missing__(self, name: str) -> Function:
            return Function()

    stack = case.build(5, 17, 1, zoneout=0.3, state=0.2).float()
    x_TBI = random_input(stack, 3, 2).float()
    monkeypatch.setattr(kernels, "compiled", lambda passes, options: Compiled())
    monkeypatch.setattr(stack.gpu_driver, "graphs", Graphs(lambda launches, device: launches))
    monkeypatch.setattr(stack.gpu_driver, "takes_graphs", lambda device: replays)
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: torch.cuda.device(SECOND))

    def run() -> int:
        for _ in range(3):
            own(stack)(x_TBI, stack.zero_state(2))[0].sum().backward()
        return cards.current

    assert in_a_thread(run) == 0
    assert set(launched) == {1}
    assert stack.gpu_driver.graphs.replays == 2 * replays


def test_only_a_recording_on_its_own_card_keeps_a_window_from_becoming_a_graph(
    cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = 1
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: cards.current == recording)
    takes_graphs = RecurrentLayers.gpu_driver.takes_graphs
    assert (takes_graphs(FIRST), takes_graphs(SECOND)) == (True, False)
    recording = 0
    assert (takes_graphs(FIRST), takes_graphs(SECOND)) == (False, True)
    monkeypatch.setenv("CHARLM_GRAPHS", "0")
    assert (takes_graphs(FIRST), takes_graphs(SECOND)) == (False, False)


# Streams


def test_buffers_of_another_stream_of_the_card_are_not_taken(cards: Cards) -> None:
    cache, driver = BufferCache(), RecurrentLayers.gpu_driver
    tensor: Any = SimpleNamespace(device=SECOND, shape=(3,), dtype=torch.float32)
    sizes: Any = {"T": 1, "B": 1, "H": 2, "I": 0, "bf16": False, "saved_steps": 1}
    inputs = LoopInputs(passes=Case("rnn").start(1, 2).passes(0), **sizes, weights=[], windows=[], vectors=[])

    def address(stream: int) -> int:
        cards.streams = [0, stream]
        buffers = choose_buffers(driver, inputs, [tensor], cache)("window")
        return buffers.new("states", torch.zeros(1), 3).data_ptr()

    first = address(stream=5)
    assert address(stream=6) != first
    assert address(stream=5) == first


def test_a_graph_is_replayed_in_the_stream_for_which_it_was_recorded(cards: Cards) -> None:
    """In another one it could run while the first still uses its memory."""
    recorded: list[tuple[torch.device, int]] = []

    def record(launches: Callable[[], None], device: torch.device) -> Callable[[], None]:
        recorded.append((device, cards.streams[1]))
        return launches

    graphs = Graphs(record)
    for stream, device in ((5, SECOND), (6, SECOND), (5, SECOND), (5, FIRST)):
        cards.streams = [0, stream]
        for _ in range(3):
            graphs.run("call", lambda: None, device)
    assert recorded == [(SECOND, 5), (SECOND, 6), (FIRST, 5)]
    assert graphs.replays == 1 + 1 + 3 + 1


def test_a_graph_is_recorded_on_its_card_with_the_memory_of_its_stream(
    cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[tuple[int, Any]] = []

    class Graph:
        def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
            recorded.append((cards.current, pool))

        def capture_end(self) -> None:
            pass

        def replay(self) -> None:
            pass

    handles = iter(range(10))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: SimpleNamespace(index=cards.current, cuda_stream=99))
    monkeypatch.setattr(graphs, "_stream", graphs._stream.__wrapped__)  # not those of a card that is there
    recorder = Recorder()
    for device, stream in ((SECOND, 5), (SECOND, 6), (SECOND, 5), (FIRST, 5)):
        cards.streams = [5, stream]
        recorder(lambda: recorded.append((cards.current, cards.streams[cards.current])), device)
    assert cards.current == 0
    assert recorded == [(1, 0), (1, 99), (1, 1), (1, 99), (1, 0), (1, 99), (0, 2), (0, 99)]


def test_a_recording_that_fails_leaves_the_random_generator_as_it_was(
    cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's generator leaves a capture only where CUDA ends it without an error, which it refuses after one."""
    generator = SimpleNamespace(capturing=False)

    class Graph:
        is_valid = True

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
            generator.capturing = True
            running.append(self)

        def capture_end(self) -> None:
            if not self.is_valid:
                raise RuntimeError("operation failed due to a previous error during capture")
            generator.capturing = False

    def invalidate() -> None:
        running[-1].is_valid = False
        raise RuntimeError("operation not permitted when stream is capturing")

    running: list[Graph] = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 0)
    monkeypatch.setattr(graphs, "_stream", lambda device: SimpleNamespace(index=0, cuda_stream=99))
    with pytest.raises(RuntimeError, match="not permitted"):
        Recorder()(invalidate, FIRST)
    assert not generator.capturing


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
    on_first, on_second = (case.start(17, 40, 2).to(device) for device in (FIRST, SECOND))
    for one in (on_first, on_second):
        one.load_state_dict(stack.state_dict())

    def run() -> list[Tensor]:
        found = windows(on_second, x.to(SECOND))
        assert torch.cuda.current_device() == 0
        return found

    expected = windows(on_first, x.to(FIRST))
    if torch.cuda.get_device_name(0) == torch.cuda.get_device_name(1):
        assert all(map(torch.equal, in_a_thread(run), expected))
    else:
        for one, other in zip(in_a_thread(run), expected, strict=True):
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
