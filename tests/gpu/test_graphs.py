"""Recorded windows: replayed only for the same addresses and numbers, on buffers whose addresses come again.

Drivers prove themselves, and where one fails the next way computes the layers.
"""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from charlm.cells import Cell, log, sqrt, tanh
from charlm.cells.derivative import passes_of
from charlm.gpu.graphs import Graphs, Launches, identity
from charlm.gpu.recurrence import GpuDriver
from charlm.layers import RecurrentLayers
from charlm.layers.backend import Backend, Task
from charlm.layers.reference import REFERENCE
from charlm.layers.selection import gpu_backend
from charlm.system.device import autocast
from tests.cells.measure import Case, own, random_input, random_state
from tests.runs import before_updates, untimed
from tests.text import words_text

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


class Unrecordable:
    def __call__(self, launches: Launches, device: torch.device) -> Launches:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")


class Unplayable:
    def __call__(self, launches: Launches, device: torch.device) -> Launches:
        def replay() -> None:
            raise RuntimeError("CUDA error: invalid argument")

        return replay


class Stale:
    """What it returns leaves the results of the call before."""

    def __call__(self, launches: Launches, device: torch.device) -> Launches:
        return lambda: None


@pytest.fixture
def driver(interpreter):
    """Windows on the CPU become graphs."""
    return GpuDriver(Graphs(Recorder))


# Graphs


def test_calls_are_recorded_the_second_time_and_forgotten_when_not_used_for_longest():
    recorder, runs = Recorder(), []
    graphs = Graphs(lambda: recorder, capacity=2)

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


@pytest.mark.parametrize(("recorder", "fault"), [(Unrecordable, "operation not permitted"), (Unplayable, "CUDA")])
def test_a_graph_that_fails_is_the_last_and_its_call_is_launched(capsys, recorder, fault):
    graphs, runs = Graphs(recorder), []
    for _ in range(4):
        graphs.run("call", lambda: runs.append(1), CPU)
    assert len(runs) == 4
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"graph    not used from now on: {fault}")


def test_another_address_or_number_is_another_call():
    x, y = torch.zeros(4, 4), torch.zeros(4, 4)
    rnn, gru = (passes_of(Case(kind).start(1, 2).forms[0].program) for kind in ("rnn", "gru"))
    values: dict[str, Any] = {"T": 3, "epsilon": 0.5, "x": x, "mask": None, "passes": rnn}
    same = identity(values)
    assert identity(values | {"x": x.detach()}) == same
    others: list[dict[str, Any]] = [{"T": 4}, {"epsilon": 0.25}, {"mask": y}, {"passes": gru}]
    others += [{"x": tensor} for tensor in (y, x[:2], x.view(2, 8), x.view(torch.int32), x.t())]
    assert all(identity(values | other) != same for other in others)


# Windows


def results(stack: RecurrentLayers, x: Tensor, seed: int, driver: GpuDriver | None = None) -> list[Tensor]:
    """Outputs, states and gradients, then those of an evaluation in inference mode; masks and resets are the seed's."""
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    resets_TB = torch.rand(x.shape[:2]) < 0.4
    y, state = own(stack, driver)(x, random_state(stack, x.shape[1]), resets_TB)
    outputs = [y, *state]
    gradients = torch.autograd.grad(outputs, [x, *stack.parameters()], [torch.randn_like(tensor) for tensor in outputs])
    with torch.inference_mode():
        y, state = own(stack.eval(), driver)(x[:2], stack.initial_state(x.shape[1]))
    stack.train()
    return [*(tensor.detach() for tensor in outputs), *gradients, y, *state]


def test_every_window_from_the_third_on_is_replayed_with_the_same_results(driver):
    stack = Case("lstm").build(5, 5, 2, zoneout=0.2, state=0.2, weights=0.2).float()
    inputs = [random_input(stack, 3, 2).float() for _ in range(4)]
    replayed = [results(stack, x, seed, driver) for seed, x in enumerate(inputs)]
    # Of two layers: both passes of two windows; and all but the first evaluation, whose layers share buffers.
    assert driver.graphs.replays == 2 * 2 * 2 + 2 * 3
    copies = [copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))]
    launched = [results(stack, x, seed) for seed, x in enumerate(inputs)]
    launched += [results(copied, inputs[0], 0) for copied in copies]
    for one, other in zip([*replayed, replayed[0], replayed[0]], launched, strict=True):
        assert all(map(torch.equal, one, other))


def test_a_window_in_another_precision_is_launched(driver):
    stack = Case("rnn").build(5, 5, 1).float()
    x = random_input(stack, 3, 2).float()
    for _ in range(4):
        results(stack, x, 0, driver)
    replayed = driver.graphs.replays
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # by its newer name alone, so allow_tf32 cannot be read
    try:
        results(stack, x, 0, driver)
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"
    assert 0 < replayed == driver.graphs.replays


def test_windows_that_wait_for_their_backward_pass_share_nothing(driver):
    stack = Case("lstm").build(3, 5, 2).float()
    windows = [random_input(stack, 2, 2).float() for _ in range(2)]
    parameters = list(stack.parameters())

    def loss(x):
        return own(stack, driver)(x, stack.initial_state(2))[0].sum()

    for _ in range(3):
        losses = [loss(x) for x in windows]
        together = torch.autograd.grad(torch.stack(losses).sum(), parameters, retain_graph=True)
        alone = [torch.autograd.grad(loss(x), parameters) for x in windows]
        again = torch.autograd.grad(torch.stack(losses).sum(), parameters)
        assert all(map(torch.equal, again, together))
        for gradient, singles in zip(together, zip(*alone, strict=True), strict=True):
            torch.testing.assert_close(gradient, sum(singles), rtol=1e-5, atol=1e-5)


# The proof


@pytest.fixture
def drivers(monkeypatch, interpreter):
    """The ways to compute layers on a GPU compute those on the CPU, with graphs of this recorder."""

    def of(recorder: Any = Recorder) -> tuple[GpuDriver, GpuDriver]:
        drivers = GpuDriver(Graphs(recorder)), GpuDriver(None)

        def backends(task: Task, device: torch.device) -> list[Backend]:
            return [*(gpu_backend(driver, task) for driver in drivers), REFERENCE]

        monkeypatch.setattr("charlm.layers.selection.backends", backends)
        monkeypatch.setattr("charlm.layers.stack.DRIVERS", drivers)
        monkeypatch.setattr("charlm.gpu.recurrence.lacks_graphs", lambda device: None)
        monkeypatch.setattr("charlm.training.machine.load", lambda *kernels: None)  # those of the CPU
        return drivers

    return of


def break_pass(monkeypatch, name: str, spoil: Any) -> None:
    """Call `spoil` with the arguments of a pass after it."""
    from charlm.gpu.kernels import TritonSteps

    original = getattr(TritonSteps, name)

    def broken(*arguments: Any) -> None:
        original(*arguments)
        spoil(*arguments)

    monkeypatch.setattr(TritonSteps, name, broken)


def fails(*arguments: Any) -> None:
    raise TypeError("at 2:4:\n    x = y\ny is not defined")


WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "compilation": (("forward", fails), "TypeError: y is not defined"),
    "value": (("forward", lambda steps: steps.w.states[0, -1].mul_(1.001)), "y differs from the reference loop by "),
    "gradient": (("backward", lambda steps, d: d.d_products[0].mul_(1.001)), "dx differs from the reference loop by "),
}


@pytest.mark.parametrize(("broken", "fault"), WRONG.values(), ids=WRONG)
def test_wrong_kernels_leave_layers_to_the_reference_loop(drivers, monkeypatch, cache, broken, fault):
    """What differs is a verdict, which the cache keeps; an error may go away."""
    drivers()
    break_pass(monkeypatch, *broken)
    selection = Case("rnn").start(3, 4).select_backend("cpu")
    assert selection.backend is REFERENCE
    assert list(selection.passed_over) == ["loop in CUDA graphs", "loop of single kernels"]
    assert all(reason.startswith(fault) for reason in selection.passed_over.values())
    assert bool(list(cache.rglob("*.proof"))) == (broken[1] is not fails)


class Starts(Cell):
    """A cell whose step is not finite for negative parameters."""

    def step(self, p: Any, x: Any, h: Any) -> Any:
        rates = log(p.vector("rate", start=np.geomspace(0.01, 1, self.hidden), fixed=True))
        return tanh(p.product("w", x) + sqrt(p.vector("root", start=0.5)) * rates * h)


@pytest.mark.parametrize("hidden", [48, 4])
def test_kernels_prove_themselves_near_the_initial_values(drivers, hidden):
    drivers()
    assert RecurrentLayers(Starts(hidden=hidden), 3).select_backend("cpu").passed_over == {}


@pytest.mark.parametrize(
    ("recorder", "fault"),
    [
        (Unrecordable, "operation not permitted when stream is capturing"),
        (Unplayable, "CUDA error: invalid argument"),
        (Stale, "y differs from the reference loop by "),
    ],
)
def test_wrong_graphs_leave_layers_to_single_kernels(drivers, capsys, recorder, fault):
    drivers(recorder)
    layers = Case("rnn").start(3, 4)
    selection = layers.select_backend("cpu")
    assert selection.way.startswith(f"loop of single kernels (Triton's kernels); no loop in CUDA graphs: {fault}")
    lines = [f"check    rnn: {name} and reference loop, once for this card ..." for name in NAMES]
    assert capsys.readouterr().err.splitlines() == lines
    x = torch.randn(3, 2, 3)
    torch.testing.assert_close(layers(x), layers.forward_reference(x))
    assert capsys.readouterr().err == ""


def test_graphs_that_are_never_replayed_prove_nothing(drivers, monkeypatch):
    drivers()
    monkeypatch.setattr("charlm.gpu.recurrence.identity", lambda fields: object())
    selection = Case("rnn").start(3, 4).select_backend("cpu")
    assert selection.passed_over == {NAMES[0]: "no window was replayed"}


NAMES = ("loop in CUDA graphs", "loop of single kernels")


@pytest.mark.parametrize(("kind", "precision", "layers"), [("slstm", "fp32", 1), ("rnn", "bf16", 2)])
def test_right_kernels_prove_themselves_and_leave_nothing_behind(drivers, monkeypatch, kind, precision, layers):
    from charlm.gpu.kernels import TritonSteps

    monkeypatch.setattr(TritonSteps, "BF16", torch.float32)  # see test_kernels.py
    used, _ = drivers()
    stack = Case(kind).start(3, 16, layers, zoneout=0.1, state=0.5)
    before = torch.get_rng_state()
    with autocast(CPU, precision), torch.inference_mode():
        selection = stack.select_backend("cpu", resets=True)
    assert (selection.backend.name, selection.passed_over) == ("loop in CUDA graphs", {})
    assert torch.equal(torch.get_rng_state(), before)
    assert used.graphs.replays == 0
    assert not any(vars(used.graphs)[name] for name in ("_launched", "_recorded"))
    assert not stack.buffer_cache._free
    assert all(parameter.grad is None for parameter in stack.parameters())


def test_the_cache_keeps_the_outcome_for_the_kernels_and_the_card(drivers, cache, capsys, monkeypatch):
    passed_over: dict[str, str] = {}

    def compares(resets: bool = False, **options: Any) -> bool:
        """Whether the kernels of another stack are compared."""
        selection = Case("rnn").start(3, 4, **options).select_backend("cpu", resets=resets)
        assert selection.passed_over == passed_over
        return "check" in capsys.readouterr().err

    drivers()
    assert compares()
    assert not compares()
    assert not compares(weights=0.5)  # which changes no kernel
    assert compares(zoneout=0.5)
    assert compares(resets=True)
    assert compares(state=0.5)
    with monkeypatch.context() as patch:
        patch.setattr("charlm.layers.gpu_proof.describe_card", lambda device: "another")
        assert compares()
    proofs = list((cache / "kernels").glob("rnn-*.proof"))
    for file in proofs:
        file.write_text("")  # damaged
    assert compares()
    for file in proofs:
        file.write_text("y differs")
    passed_over = {NAMES[0]: "y differs"}
    assert compares()  # the other way
    assert not compares()
    (cache / "kernels").chmod(0o777)  # so it is neither read nor written
    passed_over = {}
    assert compares()
    assert compares()


def test_memory_that_runs_out_is_no_outcome(drivers, monkeypatch, cache):
    def spoil(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    drivers()
    break_pass(monkeypatch, "backward", spoil)
    with pytest.raises(torch.OutOfMemoryError):
        Case("rnn").start(3, 4).select_backend("cpu")
    assert not list(cache.rglob("*.proof"))


TINY_RNN = """\
data: {source: text.txt, split: [0.9, 0.1, 0]}
model: {cell: {kind: rnn, hidden: 5}, embedding: 4, dropout: {input: 0.3, state: 0.3}}
train: {batch_size: 2, bptt: 4, max_steps: 3, log_every: 1, sample_every: 0}
device: cpu
precision: fp32
"""


@pytest.mark.parametrize("passes", [0, 1], ids=["forward", "backward"])
def test_kernels_that_fail_later_leave_the_update_to_the_next_way(drivers, monkeypatch, cli, tmp_path, passes):
    """passes: how many of the second update succeed."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text(words_text(600))
    Path("rnn.yaml").write_text(TINY_RNN)
    graphs = drivers()[0].graphs
    run, calls = graphs.run, []

    def fail_from_now_on(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > passes:
            raise TypeError("at 2:4:\n    x = y\ny is not defined")
        run(*arguments)

    with before_updates(1, lambda trainer: monkeypatch.setattr(graphs, "run", fail_from_now_on)):
        printed = cli("train", "--config", "rnn.yaml", "--run-dir", "failed").err
    assert "rnn: loop in CUDA graphs (Triton's kernels)\n" in printed
    fault = "gpu      cpu: the loop in CUDA graphs failed: TypeError: y is not defined; the next call takes a "
    before, _, after = printed.partition(fault)
    assert "single kernels" not in before
    assert "check    rnn: loop of single kernels and reference loop" in after
    assert after.count("failed: ") <= 1  # a step without a mask, in an evaluation
    monkeypatch.setattr("charlm.layers.selection.backends", lambda task, device: [REFERENCE])
    cli("train", "--config", "rnn.yaml", "--run-dir", "whole")
    pairs = zip(untimed(Path("failed")), untimed(Path("whole")), strict=True)
    assert all(one["nats"] == pytest.approx(other["nats"], rel=1e-5) for one, other in pairs)


def test_an_error_that_breaks_the_card_names_the_slow_way(cli, text_file, monkeypatch):
    def choose(*arguments: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    monkeypatch.setattr("charlm.choice.suggest.choose_machine", choose)
    advice = "start again, or resume; CHARLM_KERNELS=none in the environment takes the slow, safe way"
    fault = f"gpu: CUDA error: an illegal memory access was encountered; {advice}"
    assert cli("train", text_file).error == fault


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_kernels_prove_themselves_on_a_card(case):
    for precision in ("fp32", "bf16"):
        with autocast(torch.device("cuda"), precision):
            selection = case.start(17, 40, zoneout=0.1).cuda().select_backend("cuda", resets=True)
        assert (selection.backend.name, selection.passed_over) == ("loop in CUDA graphs", {})


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_replayed_window_has_the_bits_of_a_launched_one(case):
    stack = case.build(17, 40, 1, zoneout=0.1).float().cuda()
    graphs = Graphs()
    forward = own(stack, GpuDriver(graphs))
    x, dy = torch.randn(9, 5, 17, device="cuda"), torch.randn(9, 5, 40, device="cuda")

    def window():
        torch.manual_seed(1)
        y, _ = forward(x)
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
