"""Windows have memory whose addresses come again, and never share it while one of them needs it."""

import copy
import pickle
import weakref

import pytest
import torch
from torch import Tensor

from charlm.gpu.buffers import BufferCache
from charlm.gpu.graphs import Graphs
from charlm.layers.stack import RecurrentLayers
from tests.cells.measure import CASES, Case, as_tuple, own, random_input, random_state
from tests.gpu.test_graphs import Recorder
from tests.pairwise import pairwise

OPTIONS = {"zoneout": 0.2, "state_dropout": 0.2, "weight_dropout": 0.2}


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Makes all kinds take graphs on the CPU, where what replaces a graph runs the launches again."""
    recorder = Recorder()
    for kernel in {case.start(1, 2).gpu_driver for case in CASES}:
        monkeypatch.setattr(kernel, "graphs", Graphs(recorder))
        monkeypatch.setattr(kernel, "takes_graphs", lambda device: True)
    return recorder


def results(stack: RecurrentLayers, x: Tensor, seed: int, *, resets: bool = False) -> list[Tensor]:
    """Outputs, states and gradients; the masks depend on the seed."""
    torch.manual_seed(seed)
    x = x.clone().requires_grad_()
    resets_TB = torch.rand(x.shape[:2]) < 0.4 if resets else None
    y, state = own(stack)(x, random_state(stack, x.shape[1]), resets_TB)
    found = [y, *as_tuple(state)]
    gradients = torch.autograd.grad(found, [x, *stack.parameters()], [torch.randn_like(tensor) for tensor in found])
    return [*(tensor.detach() for tensor in found), *gradients]


def scores(stack: RecurrentLayers, x: Tensor) -> list[Tensor]:
    """Outputs and states of an evaluation, in inference mode as charlm's."""
    with torch.inference_mode():
        y, state = own(stack.eval())(x, stack.zero_state(x.shape[1]))
    stack.train()
    return [y, *as_tuple(state)]


@pairwise(case=CASES, resets=[False, True])
def test_every_window_from_the_third_on_is_replayed(case: Case, recorder: Recorder, resets: bool) -> None:
    stack = case.build(5, 17, 3, **OPTIONS)
    kept = []
    for update in range(5):
        before = recorder.replayed
        found = results(stack, random_input(stack, 4, 2), seed=update, resets=resets)
        assert recorder.replayed - before == (6 if update > 1 else 0)
        kept.append((found, [tensor.clone() for tensor in found]))  # so that other tensors get other addresses
    assert recorder.recorded == 6
    assert all(torch.equal(*pair) for found, copies in kept for pair in zip(found, copies, strict=True))


def test_an_evaluation_in_between_costs_no_replay(recorder: Recorder) -> None:
    """It has windows of a size of its own, of which the last is shorter."""
    stack = Case("lstm").build(5, 17, 2)
    for update in range(5):
        before = recorder.replayed
        for _ in range(2):
            results(stack, random_input(stack, 4, 2), seed=0)
        for steps in (8, 8, 3):
            scores(stack, random_input(stack, steps, 6))
        if update > 1:  # of two layers: both passes of two windows, and three windows without gradients
            assert recorder.replayed - before == 2 * 2 * 2 + 2 * 3


@pairwise(case=CASES, resets=[False, True], zoneout=[0.0, 0.2])
def test_kept_memory_changes_no_result(
    case: Case, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, resets: bool, zoneout: float
) -> None:
    stack = case.build(17, 17, 2, **OPTIONS | {"zoneout": zoneout})
    inputs = [random_input(stack, 4, 2) for _ in range(4)]

    def found() -> list[Tensor]:
        windows = [results(stack, x, seed, resets=resets) + scores(stack, x) for seed, x in enumerate(inputs)]
        return [tensor for window in windows for tensor in window]

    kept = found()
    # Of two layers: both passes of the last two windows; and all but the first evaluation, whose layers share memory.
    assert recorder.replayed == 2 * 2 * 2 + 2 * 3
    monkeypatch.setattr(stack.gpu_driver, "takes_graphs", lambda device: False)
    assert all(map(torch.equal, kept, found()))
    assert recorder.replayed == 2 * 2 * 2 + 2 * 3


def test_without_graphs_no_memory_is_kept(recorder: Recorder) -> None:
    stack = Case("lstm").build(5, 17, 1)
    stack.gpu_driver.graphs.enabled = False
    results(stack, random_input(stack, 4, 2), seed=0)
    assert not stack._buffer_cache._free


@pytest.mark.usefixtures("recorder")
def test_windows_that_wait_for_their_backward_pass_share_nothing() -> None:
    stack = Case("lstm").build(5, 17, 2)
    windows = [random_input(stack, 4, 2) for _ in range(3)]
    for _ in range(4):
        outputs = [own(stack)(x, stack.zero_state(2))[0] for x in windows]
        parameters = list(stack.parameters())
        together = torch.autograd.grad(sum(y.sum() for y in outputs), parameters)  # type: ignore[union-attr]
        alone = [torch.autograd.grad(own(stack)(x, stack.zero_state(2))[0].sum(), parameters) for x in windows]
        for found, parts in zip(together, zip(*alone, strict=True), strict=True):
            torch.testing.assert_close(found, sum(parts), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("recorder")
def test_a_retained_graph_keeps_its_memory() -> None:
    stack = Case("gru").build(5, 17, 2)
    x = random_input(stack, 4, 2)
    loss = own(stack)(x, stack.zero_state(2))[0].sum()
    first = torch.autograd.grad(loss, list(stack.parameters()), retain_graph=True)
    for _ in range(3):
        own(stack)(2 * x, stack.zero_state(2))[0].sum().backward()
    assert all(map(torch.equal, torch.autograd.grad(loss, list(stack.parameters())), first))


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
    assert addresses(cache, "training", calls=3) == first
    assert addresses(cache, "training", calls=4)[:3] == first


def test_memory_is_kept_for_the_last_two_forms() -> None:
    cache = BufferCache()
    made: list[weakref.ref[Tensor]] = []
    for form in ("first", "second", "first", "third"):
        buffers = cache.buffers_of(form)("window")
        made.append(weakref.ref(buffers.new("states", torch.zeros(1), 3)))
        del buffers
    assert [ref() is not None for ref in made] == [True, False, True, True]
    assert made[0]() is made[2]()


def test_memory_of_inference_mode_serves_nothing_else() -> None:
    cache = BufferCache()
    with torch.inference_mode():
        addresses(cache, "form")
    with torch.no_grad():
        assert not cache.buffers_of("form")("window").read("states", torch.ones(3)).is_inference()


def test_memory_of_another_form_is_an_error() -> None:
    cache = BufferCache()
    addresses(cache, "form")
    with pytest.raises(AssertionError, match="states"):
        cache.buffers_of("form")("window").new("states", torch.zeros(1), 4)


def test_a_copied_or_stored_stack_takes_no_memory_along(recorder: Recorder) -> None:
    stack = Case("lstm").build(5, 17, 1)
    results(stack, random_input(stack, 4, 2), seed=0)
    assert stack._buffer_cache._free
    for other in (copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))):
        assert not other._buffer_cache._free
