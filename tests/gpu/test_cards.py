"""Tensors of one card while this thread's current device is another: launches, streams, graphs.

The first tests replace what PyTorch says of them.
"""

import contextlib
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from charlm.gpu.graphs import Graphs
from charlm.gpu.recurrence import DRIVERS
from tests.cells.measure import own, random_input

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture
def current(monkeypatch):
    """The index of the current device, which is the first of two."""
    current = [0]

    def exchange(index):
        before = current[0]
        if index >= 0:
            current[0] = index
        return before

    monkeypatch.setattr(torch.cuda, "_exchange_device", exchange)
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", exchange)
    return current


def test_kernels_are_launched_on_the_card_of_the_tensors(case, current, monkeypatch):
    kernels = pytest.importorskip("charlm.gpu.kernels")
    launched: list[int] = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *arguments, **options: launched.append(current[0])

    stack = case.build(5, 17, 1, zoneout=0.3, state=0.2).float()
    monkeypatch.setattr(kernels, "compiled", lambda passes, options: defaultdict(Kernel))
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: torch.cuda.device(SECOND))
    own(stack)(random_input(stack, 3, 2).float(), stack.initial_state(2))[0].sum().backward()
    assert set(launched) == {1}
    assert current == [0]


def test_a_variable_switches_graphs_off(monkeypatch):
    assert [driver.lacks(FIRST, []) for driver in DRIVERS] == [None, None]
    monkeypatch.setenv("CHARLM_GRAPHS", "0")
    assert [driver.lacks(FIRST, []) for driver in DRIVERS] == ["switched off by CHARLM_GRAPHS", None]


def test_a_call_in_another_stream_or_on_another_card_is_another_graph(monkeypatch):
    """In another stream it could run while the first still uses its memory."""
    current, recorded = SimpleNamespace(cuda_stream=0), []

    def record(launches, device):
        recorded.append((device, current.cuda_stream))
        return launches

    graphs = Graphs(lambda: record)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    for stream, device in ((5, SECOND), (6, SECOND), (5, SECOND), (5, FIRST)):
        current.cuda_stream = stream
        for _ in range(3):
            graphs.run("call", lambda: None, device)
    assert recorded == [(SECOND, 5), (SECOND, 6), (FIRST, 5)]


@pytest.mark.usefixtures("current")
def test_a_recording_that_fails_leaves_the_random_generator_as_it_was(monkeypatch, capsys):
    """PyTorch's generator leaves a capture only where CUDA ends it without an error, which it refuses after one."""
    capturing: list[Any] = []
    launched: list[int] = []

    class Graph:
        is_valid = True

        def capture_begin(self, pool=0, capture_error_mode="global"):
            capturing[:] = [self]

        def capture_end(self):
            if not self.is_valid:
                raise RuntimeError("operation failed due to a previous error during capture")
            capturing.clear()

    def launches():
        if capturing:
            capturing[0].is_valid = False
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        launched.append(1)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=5))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr("charlm.gpu.graphs._stream", lambda device: None)
    graphs = Graphs()
    for _ in range(4):
        graphs.run("call", launches, FIRST)
    assert len(launched) == 4
    assert not capturing
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("graph    not used from now on: operation not permitted when stream is capturing; ")
