"""Recorded windows: replayed only for the same addresses and numbers, and forgotten in time."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from charlm.gpu.graphs import Graphs, Launches, identity
from charlm.gpu.recurrence import TensorRecurrence
from charlm.native.recurrence import Values
from charlm.native.structs import Value
from tests.cells.measure import Case, own, random_input, random_state
from tests.recordable import CheckedGraphs, Recordable

CPU = torch.device("cpu")


class Recorder:
    """In place of CUDA: what it returns runs the launches again."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, launches: Launches, device: torch.device) -> Launches:
        assert device == CPU
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            launches()

        return replay


def doubling(x: Tensor, y: Tensor) -> tuple[dict[str, Value], Launches]:
    def launches() -> None:
        torch.mul(x, 2, out=y)

    return {"T": 3, "x": x, "y": y}, launches


def test_a_call_is_recorded_the_second_time_and_replayed_from_the_third() -> None:
    recorder = Recorder()
    graphs = Graphs(recorder)
    x, y = torch.zeros(4), torch.zeros(4)
    for step in range(1, 6):
        x.fill_(step)
        values, launches = doubling(x, y)
        graphs.run(identity(values), launches, CPU)
        assert y.tolist() == [2 * step] * 4
        assert (recorder.recorded, recorder.replayed) == (int(step > 1), max(0, step - 2))


def test_threads_record_and_run_one_after_the_other() -> None:
    """All graphs are recorded on one stream."""
    inside: list[int] = []
    graphs = [Graphs(Recorder()), Graphs(Recorder())]

    def launches() -> None:
        assert not inside
        inside.append(1)
        time.sleep(0.001)
        inside.clear()

    def run(n: int) -> None:
        for _ in range(10):
            graphs[n].run(n, launches, CPU)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))


def test_another_address_or_number_is_another_call() -> None:
    x, y = torch.zeros(8), torch.zeros(8)
    values: dict[str, Any] = {"T": 3, "epsilon": 0.5, "x": x, "mask": None}
    same = identity({"T": 3, "epsilon": 0.5, "x": x.detach(), "mask": None})
    assert identity(values) == same
    others: list[dict[str, Any]] = [
        {"T": 4},
        {"epsilon": 0.25},
        {"x": y},
        {"x": x[:4]},
        {"x": x.view(2, 4)},
        {"x": x.view(torch.int32)},
        {"x": x[::2]},
        {"mask": y},
    ]
    assert all(identity(values | other) != same for other in others)


def test_what_was_not_used_for_longest_is_forgotten() -> None:
    recorder = Recorder()
    graphs = Graphs(recorder, capacity=2)
    runs: list[int] = []

    def run(call: int) -> None:
        graphs.run(call, lambda: runs.append(call), CPU)

    for call in (1, 1, 2, 2, 1, 3, 3):  # 2 is now the one that waited longest
        run(call)
    assert (recorder.recorded, recorder.replayed) == (3, 1)
    run(2)
    run(1)
    assert (recorder.recorded, recorder.replayed) == (3, 2)
    assert runs == [1, 1, 2, 2, 1, 3, 3, 2, 1]


def test_a_call_that_always_differs_is_never_recorded() -> None:
    recorder = Recorder()
    graphs = Graphs(recorder, capacity=4)
    for call in range(100):
        graphs.run(call, lambda: None, CPU)
    assert recorder.recorded == 0


def test_where_nothing_can_be_recorded_the_rest_is_launched(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(launches: Launches, device: torch.device) -> Launches:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    graphs, runs = Graphs(refuse), []
    for _ in range(5):
        graphs.run("call", lambda: runs.append(1), CPU)
    assert len(runs) == 5
    assert capsys.readouterr().err == (
        "graph    not used from now on: CUDA error: operation not permitted when stream is capturing; every kernel is "
        "launched by itself, which is slower\n"
    )


def test_windows_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver tells its calls apart by all that they depend on, and reads what the tensors hold at the time."""
    driver, recorder = TensorRecurrence(), Recorder()
    driver.graphs = Graphs(recorder)
    monkeypatch.setattr(driver, "takes_graphs", lambda device: True)
    by_tanh, by_relu = (Case("rnn", {"nonlinearity": name}).start(1, 5).passes(0) for name in ("tanh", "relu"))
    T, B, H = 3, 2, 5
    values: Values = {"T": T, "B": B, "H": H, "I": 0, "bf16": False, "saved_steps": T}
    weights_HH, inputs_TBH, states = torch.empty(H, H), torch.empty(T, B, H), torch.randn(1, 1 + T, B, H)
    values |= {"weights": [weights_HH], "windows": [inputs_TBH], "states": states}
    values |= {"vectors": [], "saved": [], "operands": []}
    for _ in range(4):
        inputs_TBH.normal_()
        weights_HH.normal_()
        driver.run("recurrence_forward", by_tanh, values)
        h_BH = states[0, 0]
        for a_BH in inputs_TBH:
            h_BH = torch.tanh(a_BH + h_BH @ weights_HH.t())
        torch.testing.assert_close(states[0, -1], h_BH)
    assert (recorder.recorded, recorder.replayed, driver.graphs.replays) == (1, 2, 2)
    # Another cell, and another precision of products, on the same tensors.
    driver.run("recurrence_forward", by_relu, values)
    assert states[0, 1:].min() >= 0
    products = torch.backends.cuda.matmul
    products.allow_tf32 = not products.allow_tf32
    try:
        driver.run("recurrence_forward", by_tanh, values)
    finally:
        products.allow_tf32 = not products.allow_tf32
    assert (recorder.recorded, recorder.replayed) == (1, 2)


@pytest.mark.parametrize("launch", [torch.Tensor.item, torch.bernoulli, torch.nonzero, bool])
def test_what_a_graph_cannot_record_is_noticed(launch: Callable[[Tensor], Any]) -> None:
    with Recordable(), pytest.raises(AssertionError, match=r"reads|draws|depends"):
        launch(torch.ones(1))


def test_a_graph_can_record_a_window(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = case.build(5, 17, 1, zoneout=0.3, state_dropout=0.2)
    checked = CheckedGraphs()
    monkeypatch.setattr(stack.gpu_driver, "graphs", checked)
    monkeypatch.setattr(stack.gpu_driver, "takes_graphs", lambda device: True)
    y_TBH, _ = own(stack)(random_input(stack, 4, 3), random_state(stack, 3))
    y_TBH.sum().backward()
    assert checked.runs == 2


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_replayed_window_has_the_bits_of_a_launched_one(case: Case) -> None:
    stack = case.build(17, 40, 1, zoneout=0.1).float().cuda()
    graphs = stack.gpu_driver.graphs
    x, dy = torch.randn(9, 5, 17, device="cuda"), torch.randn(9, 5, 40, device="cuda")

    def found() -> list[Tensor]:
        torch.manual_seed(1)
        y, _ = stack(x)
        return [y.detach(), *torch.autograd.grad(y, list(stack.parameters()), dy)]

    before = graphs.replays
    for _ in range(8):
        for tensor in (x, dy, *(p.data for p in stack.parameters())):
            tensor.normal_(std=0.3)
        replayed = found()
        graphs.enabled = False
        launched = found()
        graphs.enabled = True
        for one, other in zip(replayed, launched, strict=True):
            assert torch.equal(one, other)
    assert graphs.replays == before + 2 * 6, "both passes are replayed from the third window on"
