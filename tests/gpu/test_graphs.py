"""Recorded windows: replayed only for the same addresses and numbers, on buffers whose addresses come again."""

import copy
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from charlm.cells.window import Window
from charlm.gpu.graphs import Graphs, Launches, identity
from charlm.layers import RecurrentLayers
from charlm.layers.buffers import BufferCache
from tests.cells.measure import Case, own, random_input, random_state
from tests.pairwise import pairwise
from tests.recordable import CheckedGraphs, Recordable

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in Triton's interpreter
CPU = torch.device("cpu")
OPTIONS = {"zoneout": 0.2, "state": 0.2, "weights": 0.2}


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


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch, interpreter: None) -> Recorder:
    """Makes all layers take graphs on the CPU."""
    recorder = Recorder()
    monkeypatch.setattr(RecurrentLayers.gpu_driver, "graphs", Graphs(recorder))
    monkeypatch.setattr(RecurrentLayers.gpu_driver, "takes_graphs", lambda device: True)
    return recorder


# Graphs


def test_calls_are_recorded_the_second_time_and_forgotten_when_not_used_for_longest() -> None:
    recorder, runs = Recorder(), []
    graphs = Graphs(recorder, capacity=2)

    def counts(*calls: int) -> tuple[int, int]:
        for call in calls:
            graphs.run(call, lambda call=call: runs.append(call), CPU)
        return recorder.recorded, recorder.replayed

    assert counts(1) == (0, 0)
    assert counts(1) == (1, 0)
    assert counts(1, 1) == (1, 2)
    assert counts(2, 2, 1, 3, 3) == (3, 3)  # 2 is now the one that waited longest
    assert counts(2, 1) == (3, 4)
    assert runs == [1, 1, 1, 1, 2, 2, 1, 3, 3, 2, 1]
    assert counts(*range(10, 100)) == (3, 4)  # calls that always differ are never recorded


def test_threads_record_and_run_one_after_the_other() -> None:
    """All graphs are recorded on one stream."""
    inside: list[int] = []
    graphs = [Graphs(Recorder()), Graphs(Recorder())]

    def launches() -> None:
        assert not inside
        inside.append(1)
        torch.ones(300, 300).mm(torch.ones(300, 300))  # lets other threads run
        inside.clear()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda n: [graphs[n].run(n, launches, CPU) for _ in range(10)], range(2)))


def test_another_address_or_number_is_another_call() -> None:
    x, y = torch.zeros(4, 4), torch.zeros(4, 4)
    values: dict[str, Any] = {"T": 3, "epsilon": 0.5, "x": x, "mask": None}
    same = identity({"T": 3, "epsilon": 0.5, "x": x.detach(), "mask": None})
    assert identity(values) == same
    tensors = [y, x[:2], x.view(2, 8), x.view(torch.int32), x.t()]
    others: list[dict[str, Any]] = [{"T": 4}, {"epsilon": 0.25}, {"mask": y}, *({"x": tensor} for tensor in tensors)]
    assert all(identity(values | other) != same for other in others)


def test_where_nothing_can_be_recorded_the_rest_is_launched(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(launches: Launches, device: torch.device) -> Launches:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    graphs, runs = Graphs(refuse), []
    for _ in range(5):
        graphs.run("call", lambda: runs.append(1), CPU)
    assert len(runs) == 5
    assert capsys.readouterr().err == (
        "graph    not used from now on: CUDA error: operation not permitted when stream is capturing; launching goes "
        "on without it, which is slower\n"
    )


@pytest.mark.parametrize("launch", [torch.Tensor.item, torch.bernoulli, torch.nonzero, bool])
def test_what_a_graph_cannot_record_is_noticed(launch: Any) -> None:
    with Recordable(), pytest.raises(AssertionError, match=r"reads|draws|depends"):
        launch(torch.ones(1))


@pytest.mark.usefixtures("no_launches")
def test_a_graph_can_record_a_window(case: Case, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = case.build(5, 17, 1, zoneout=0.3, state=0.2).float()
    checked = CheckedGraphs()
    monkeypatch.setattr(stack.gpu_driver, "graphs", checked)
    y_TBH, _ = own(stack)(random_input(stack, 4, 3).float(), random_state(stack, 3))
    y_TBH.sum().backward()
    assert checked.runs == 2


# Windows


def results(stack: RecurrentLayers, x: Tensor, seed: int, *, resets: bool = False) -> list[Tensor]:
    """Outputs, states and gradients, then those of an evaluation in inference mode; the masks depend on the seed."""
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    resets_TB = torch.rand(x.shape[:2]) < 0.4 if resets else None
    y, state = own(stack)(x, random_state(stack, x.shape[1]), resets_TB)
    outputs = [y, *state]
    gradients = torch.autograd.grad(outputs, [x, *stack.parameters()], [torch.randn_like(tensor) for tensor in outputs])
    with torch.inference_mode():
        y, state = own(stack.eval())(x[:3], stack.zero_state(x.shape[1]))
    stack.train()
    return [*(tensor.detach() for tensor in outputs), *gradients, y, *state]


@pairwise(case=[Case("lstm"), Case("rhn"), Case("slstm")], resets=[False, True], zoneout=[0.2, 0.0])
def test_every_window_from_the_third_on_is_replayed_with_the_same_results(
    case: Case, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, resets: bool, zoneout: float
) -> None:
    stack = case.build(17, 17, 2, **OPTIONS | {"zoneout": zoneout}).float()
    inputs = [random_input(stack, 4, 2).float() for _ in range(5)]

    def windows() -> list[list[Tensor]]:
        return [results(stack, x, seed, resets=resets) for seed, x in enumerate(inputs)]

    replayed = windows()
    # Of two layers: both passes of three windows; and all but the first evaluation, whose layers share buffers.
    assert recorder.replayed == 2 * 2 * 3 + 2 * 4
    monkeypatch.setattr(stack.gpu_driver, "takes_graphs", lambda device: False)
    for one, other in zip(replayed, windows(), strict=True):
        assert all(map(torch.equal, one, other))
    assert recorder.replayed == 2 * 2 * 3 + 2 * 4


def test_another_cell_or_precision_on_the_same_tensors_is_another_call(recorder: Recorder) -> None:
    """A window reads what the tensors hold at the time."""
    driver = RecurrentLayers.gpu_driver
    passes = [Case("rnn", {"nonlinearity": name}).start(1, 5).passes(0) for name in ("tanh", "relu")]
    T, B, H = 3, 2, 5
    weights_HH, inputs_TBH, states = torch.empty(H, H), torch.empty(T, B, H), torch.randn(1, 1 + T, B, H)
    sizes: Any = {"T": T, "B": B, "H": H, "I": 0, "bf16": False, "saved_steps": T}
    tensors: Any = {"weights": [weights_HH], "windows": [inputs_TBH], "vectors": [], "saved": [], "operands": []}
    tanh, relu = (Window(passes=both, states=states, **sizes, **tensors) for both in passes)
    for _ in range(4):
        inputs_TBH.normal_()
        weights_HH.normal_()
        driver.forward(tanh)
        h_BH = states[0, 0]
        for a_BH in inputs_TBH:
            h_BH = torch.tanh(a_BH + h_BH @ weights_HH.t())
        torch.testing.assert_close(states[0, -1], h_BH)
    driver.forward(relu)
    assert states[0, 1:].min() >= 0
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # by its newer name alone, so allow_tf32 cannot be read
    try:
        driver.forward(tanh)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert (recorder.recorded, recorder.replayed) == (1, 2)


def test_without_graphs_no_buffers_are_cached_and_copies_take_none_along(recorder: Recorder) -> None:
    stack = Case("lstm").build(5, 17, 1).float()
    stack.gpu_driver.graphs.enabled = False
    results(stack, random_input(stack, 4, 2).float(), seed=0)
    assert not stack.buffer_cache._free
    stack.gpu_driver.graphs.enabled = True
    results(stack, random_input(stack, 4, 2).float(), seed=0)
    assert stack.buffer_cache._free
    for other in (copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))):
        assert not other.buffer_cache._free


@pytest.mark.usefixtures("recorder")
def test_windows_that_wait_for_their_backward_pass_share_nothing() -> None:
    stack = Case("lstm").build(5, 17, 2).float()
    windows = [random_input(stack, 4, 2).float() for _ in range(3)]
    parameters = list(stack.parameters())

    def loss(x: Tensor) -> Tensor:
        return own(stack)(x, stack.zero_state(2))[0].sum()

    for _ in range(4):
        losses = [loss(x) for x in windows]
        together = torch.autograd.grad(torch.stack(losses).sum(), parameters, retain_graph=True)
        alone = [torch.autograd.grad(loss(x), parameters) for x in windows]
        again = torch.autograd.grad(torch.stack(losses).sum(), parameters)
        assert all(map(torch.equal, again, together))
        for gradient, singles in zip(together, zip(*alone, strict=True), strict=True):
            torch.testing.assert_close(gradient, sum(singles), rtol=1e-5, atol=1e-5)


# Buffers


def addresses(cache: BufferCache, form: str, calls: int = 1) -> list[int]:
    """Of calls that are not over before the last begins, and then are, in backward order."""
    taken = [cache.buffers_of(form)("window") for _ in range(calls)]
    found = [buffers.new("states", torch.zeros(1), 3).data_ptr() for buffers in taken]
    while taken:
        taken.pop()
    return found


def test_addresses_come_again_in_order() -> None:
    cache = BufferCache()
    first = addresses(cache, "training", calls=3)
    assert len(set(first)) == 3
    addresses(cache, "another")
    assert addresses(cache, "training", calls=4)[:3] == first
    with pytest.raises(AssertionError, match="states"):  # another shape
        cache.buffers_of("training")("window").new("states", torch.zeros(1), 4)


def test_buffers_of_the_last_two_forms_are_cached() -> None:
    cache = BufferCache()
    references: list[weakref.ref[Tensor]] = []
    for form in ("first", "second", "first", "third"):
        buffers = cache.buffers_of(form)("window")
        references.append(weakref.ref(buffers.new("states", torch.zeros(1), 3)))
        del buffers
    assert [reference() is not None for reference in references] == [True, False, True, True]
    assert references[0]() is references[2]()


def test_buffers_of_inference_mode_serve_nothing_else() -> None:
    cache = BufferCache()
    with torch.inference_mode():
        addresses(cache, "form")
    with torch.no_grad():
        assert not cache.buffers_of("form")("window").read("states", torch.ones(3)).is_inference()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_replayed_window_has_the_bits_of_a_launched_one(case: Case) -> None:
    stack = case.build(17, 40, 1, zoneout=0.1).float().cuda()
    graphs = stack.gpu_driver.graphs
    x, dy = torch.randn(9, 5, 17, device="cuda"), torch.randn(9, 5, 40, device="cuda")

    def window() -> list[Tensor]:
        torch.manual_seed(1)
        y, _ = stack(x)
        return [y.detach(), *torch.autograd.grad(y, list(stack.parameters()), dy)]

    before = graphs.replays
    for _ in range(8):
        for tensor in (x, dy, *(p.data for p in stack.parameters())):
            tensor.normal_(std=0.3)
        replayed = window()
        graphs.enabled = False
        launched = window()
        graphs.enabled = True
        assert all(map(torch.equal, replayed, launched))
    assert graphs.replays == before + 2 * 6, "both passes are replayed from the third window on"
