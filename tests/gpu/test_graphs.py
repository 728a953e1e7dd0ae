"""Recorded windows: replayed only for the same addresses and numbers, on buffers whose addresses come again."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from charlm.gpu.graphs import Graphs, Launches, identity
from charlm.layers import RecurrentLayers
from tests.cells.measure import Case, own, random_input, random_state

pytest.importorskip("triton")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in Triton's interpreter
CPU = torch.device("cpu")


class Recorder:
    """In place of CUDA: what it returns runs the launches again."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, launches: Launches, device: torch.device) -> Launches:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            launches()

        return replay


@pytest.fixture
def recorder(monkeypatch, interpreter):
    """Makes all layers take graphs on the CPU."""
    recorder = Recorder()
    monkeypatch.setattr(RecurrentLayers.gpu_driver, "graphs", Graphs(recorder))
    monkeypatch.setattr(RecurrentLayers.gpu_driver, "takes_graphs", lambda device: True)
    return recorder


# Graphs


def test_calls_are_recorded_the_second_time_and_forgotten_when_not_used_for_longest():
    recorder, runs = Recorder(), []
    graphs = Graphs(recorder, capacity=2)

    def counts(*calls):
        for call in calls:
            graphs.run(call, lambda call=call: runs.append(call), CPU)
        return recorder.recorded, recorder.replayed

    assert counts(1) == (0, 0)
    assert counts(1) == (1, 0)
    assert counts(1, 1) == (1, 2)
    assert counts(2, 2, 1, 3, 3) == (3, 3)  # 2 is now the one that waited longest
    assert counts(1) == (3, 4)
    assert counts(2) == (3, 4)
    assert runs == [1, 1, 1, 1, 2, 2, 1, 3, 3, 1, 2]
    assert counts(*range(10, 100)) == (3, 4)  # calls that always differ are never recorded


def test_another_address_or_number_is_another_call():
    x, y = torch.zeros(4, 4), torch.zeros(4, 4)
    rnn, gru = (Case(kind).start(1, 2).passes(0) for kind in ("rnn", "gru"))
    values: dict[str, Any] = {"T": 3, "epsilon": 0.5, "x": x, "mask": None, "passes": rnn}
    same = identity(values)
    assert identity(values | {"x": x.detach()}) == same
    others: list[dict[str, Any]] = [{"T": 4}, {"epsilon": 0.25}, {"mask": y}, {"passes": gru}]
    others += [{"x": tensor} for tensor in (y, x[:2], x.view(2, 8), x.view(torch.int32), x.t())]
    assert all(identity(values | other) != same for other in others)


# Windows


def results(stack: RecurrentLayers, x: Tensor, seed: int) -> list[Tensor]:
    """Outputs, states and gradients, then those of an evaluation in inference mode; masks and resets are the seed's."""
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    resets_TB = torch.rand(x.shape[:2]) < 0.4
    y, state = own(stack)(x, random_state(stack, x.shape[1]), resets_TB)
    outputs = [y, *state]
    gradients = torch.autograd.grad(outputs, [x, *stack.parameters()], [torch.randn_like(tensor) for tensor in outputs])
    with torch.inference_mode():
        y, state = own(stack.eval())(x[:2], stack.zero_state(x.shape[1]))
    stack.train()
    return [*(tensor.detach() for tensor in outputs), *gradients, y, *state]


def test_every_window_from_the_third_on_is_replayed_with_the_same_results(recorder, monkeypatch):
    stack = Case("lstm").build(5, 5, 2, zoneout=0.2, state=0.2, weights=0.2).float()
    inputs = [random_input(stack, 3, 2).float() for _ in range(5)]
    replayed = [results(stack, x, seed) for seed, x in enumerate(inputs)]
    # Of two layers: both passes of three windows; and all but the first evaluation, whose layers share buffers.
    assert recorder.replayed == 2 * 2 * 3 + 2 * 4
    copies = [copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))]
    monkeypatch.setattr(stack.gpu_driver, "takes_graphs", lambda device: False)
    launched = [results(stack, x, seed) for seed, x in enumerate(inputs)]
    launched += [results(copied, inputs[0], 0) for copied in copies]
    for one, other in zip([*replayed, replayed[0], replayed[0]], launched, strict=True):
        assert all(map(torch.equal, one, other))
    assert recorder.replayed == 2 * 2 * 3 + 2 * 4


def test_a_window_in_another_precision_is_launched(recorder):
    stack = Case("rnn").build(5, 5, 1).float()
    x = random_input(stack, 3, 2).float()
    for _ in range(4):
        results(stack, x, 0)
    replayed = recorder.replayed
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # by its newer name alone, so allow_tf32 cannot be read
    try:
        results(stack, x, 0)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert 0 < replayed == recorder.replayed


@pytest.mark.usefixtures("recorder")
def test_windows_that_wait_for_their_backward_pass_share_nothing():
    stack = Case("lstm").build(3, 5, 2).float()
    windows = [random_input(stack, 2, 2).float() for _ in range(2)]
    parameters = list(stack.parameters())

    def loss(x):
        return own(stack)(x, stack.zero_state(2))[0].sum()

    for _ in range(3):
        losses = [loss(x) for x in windows]
        together = torch.autograd.grad(torch.stack(losses).sum(), parameters, retain_graph=True)
        alone = [torch.autograd.grad(loss(x), parameters) for x in windows]
        again = torch.autograd.grad(torch.stack(losses).sum(), parameters)
        assert all(map(torch.equal, again, together))
        for gradient, singles in zip(together, zip(*alone, strict=True), strict=True):
            torch.testing.assert_close(gradient, sum(singles), rtol=1e-5, atol=1e-5)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_replayed_window_has_the_bits_of_a_launched_one(case):
    stack = case.build(17, 40, 1, zoneout=0.1).float().cuda()
    graphs = stack.gpu_driver.graphs
    x, dy = torch.randn(9, 5, 17, device="cuda"), torch.randn(9, 5, 40, device="cuda")

    def window():
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
