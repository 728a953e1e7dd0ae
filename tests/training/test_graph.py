"""Whole updates as one graph: on the CPU, with the reference loop's operators in place of a graph's kernels."""

import math
from types import SimpleNamespace

import pytest
import torch

from charlm.cells import CELLS
from charlm.checkpoint import read_checkpoint, save_checkpoint
from charlm.errors import DivergenceError
from charlm.gpu.graphs import Graphs, inside_graph
from charlm.layers import RecurrentLayers, selection
from charlm.layers.selection import backends
from charlm.native.build import Kernel
from charlm.system.process_group import ONE_PROCESS
from charlm.training.graph import UpdateGraph
from charlm.training.optimizer import keep_on_device
from charlm.training.snapshot import restore_snapshot, take_snapshot
from tests.pairwise import pairwise
from tests.recordable import Operators, takes_rates_on

CPU = torch.device("cpu")
SCHEDULE = {"name": "linear", "final_fraction": 0.1}
DROPOUT = {"embedding": 0.1, "input": 0.1, "between_layers": 0.1, "output": 0.1, "state": 0.1, "weights": 0.1}


class Launched:
    """In place of `UpdateGraph`: every update is launched, on new tensors."""

    def __init__(self, zero_state):
        self.zero_state = zero_state

    def run(self, update, state, inputs, others):
        if state.recurrent is None:
            state.recurrent = tuple(tensor.clone() for tensor in self.zero_state)
        update(*map(torch.as_tensor, inputs))


@pytest.fixture
def build(trainer_of, monkeypatch):
    """Trainers on the CPU that go the way of a GPU; `replays`: whether they record their updates."""
    monkeypatch.setattr(Kernel, "works", lambda kernel: False)
    monkeypatch.setattr(selection, "lacks_gpu_kernels", lambda layers, training: "no GPU")
    monkeypatch.setattr(selection, "backends", lambda layers, device: backends(layers, torch.device("meta")))
    for module in ("charlm.layers.stack", "charlm.layers.dropout", "charlm.model.network"):
        monkeypatch.setattr(f"{module}.dropout_mask", dropout_mask)
    for module in ("charlm.layers.recurrence", "charlm.layers.operators"):
        monkeypatch.setattr(f"{module}.check_ids", lambda *args: None)
    takes_rates_on(CPU, monkeypatch)

    def build(*, replays, model=None, optimizer=None, train=None):
        trainer = trainer_of(
            model={"cell": {"kind": "lstm", "hidden": 6}, **(model or {})},
            optimizer={"lr": 0.01, "clip_norm": 0.01, "weight_decay": 0.1, "schedule": SCHEDULE, **(optimizer or {})},
            train={"max_steps": 20, **(train or {})},
            train_share=0.1,  # the epoch ends after five to seven updates
        )
        assert keep_on_device(trainer.optimizer)
        trainer._defers_checks = True
        trainer._graph = (UpdateGraph if replays else Launched)(trainer.model.zero_state(4))
        if replays:
            trainer._graph.graphs = Graphs(Operators(), capacity=1)
        return trainer

    return build


def dropout_mask(shape, p, like, **shard):
    """As on a GPU."""
    return torch.empty(shape).bernoulli_(1 - p).div_(1 - p)


def update(trainer, times):
    for _ in range(times):
        trainer.update()
    return trainer


def assert_same(one, other):
    def values(trainer):
        state = trainer.state
        own = state.progress() | {"interval_s": 0.0}
        return [*own.values(), *state.tensors(ONE_PROCESS).values(), *trainer._learned_tensors()]

    for ours, theirs in zip(values(one), values(other), strict=True):
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


def assert_replays_are_launches(build, **options):
    """With a rate and a decay that change, and over the end of an epoch."""
    launched, replayed = (update(build(replays=replays, **options), 8) for replays in (False, True))
    assert launched.state.epoch == 1
    # The first update makes the optimizer's state, the third is recorded; SGD without momentum has none.
    assert replayed._graph.graphs.replays == (6 if options["optimizer"]["name"] == "sgd" else 5)
    assert_same(replayed, launched)


@pairwise(
    kind=list(CELLS),
    name=["adamw", "muon", "sgd"],
    model=[{}, {"layers": 2, "dropout": DROPOUT, "zoneout": 0.1}, {"members": 2, "embedding": 5}],
    clip=[{}, {"clip_norm": 0.0}, {"clip_value": 0.01}],
    train=[{"ema": 0.9, "reset_state": 0.3}, {"activation_penalty": 0.1, "change_penalty": 0.1}],
)
def test_replayed_updates_have_the_bits_of_launched_ones(build, kind, name, model, clip, train):
    model = {"cell": {"kind": kind, "hidden": 6}, **model}
    assert_replays_are_launches(build, model=model, optimizer={"name": name, **clip}, train=train)


@pytest.mark.parametrize("name", ["adam", "rmsprop"])
def test_other_optimizers_are_replayed_too(build, name):
    assert_replays_are_launches(build, optimizer={"name": name}, train={"ema": 0.9})


def test_a_checkpoint_is_gone_on_from_and_back_to(build, tmp_path):
    """Restored tensors have other addresses: what was recorded on the old ones is not replayed."""
    options = {"model": {"dropout": 0.1}, "optimizer": {"name": "muon"}, "train": {"ema": 0.9, "reset_state": 0.3}}
    whole = update(build(replays=False, **options), 10)
    first = update(build(replays=True, **options), 4)
    save_checkpoint(take_snapshot(first), tmp_path / "a.safetensors")
    checkpoint = read_checkpoint(tmp_path / "a.safetensors")
    update(first, 3)
    for trainer in (first, build(replays=True, **options)):
        restore_snapshot(trainer, checkpoint)
        before = trainer._graph.graphs.replays
        assert_same(update(trainer, 6), whole)
        assert trainer._graph.graphs.replays == before + 4


def test_replays_report_the_step_that_diverged_first(build):
    trainer = update(build(replays=True, optimizer={"name": "adamw"}), 4)
    with torch.no_grad():
        trainer.model.decoder.bias[0] = math.inf
    weight = trainer.model.decoder.weight.clone()
    update(trainer, 3)
    with pytest.raises(DivergenceError, match=r"^update 5: found a loss or gradient that is not finite"):
        trainer.check_finite()
    assert torch.equal(trainer.model.decoder.weight, weight)


def test_the_host_is_at_most_one_update_ahead_of_the_gpu(build, monkeypatch):
    """Otherwise a run would end after its minutes, and updates would seem faster than they are."""
    done = []

    class Event:
        def __init__(self, blocking):
            self.update = trainer.state.step + 1

        def record(self, stream):
            done.append(f"end {self.update}")

        def synchronize(self):
            done.append(f"wait for {self.update}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    trainer = update(build(replays=True), 1)
    trainer._graph._device = torch.device("cuda")
    update(trainer, 4)
    assert done == ["end 2", "end 3", "wait for 2", "end 4", "wait for 3", "end 5", "wait for 4"]


def test_layers_take_no_graphs_inside_of_an_update_and_run_backward_in_its_thread(build, monkeypatch):
    """Its thread has the lock of all graphs: a thread of autograd would wait for it forever."""
    seen = []
    trainer = build(replays=True)
    takes_graphs, backward = RecurrentLayers.gpu_driver.takes_graphs, trainer._backward

    def watched(loss):
        seen.append((takes_graphs(torch.device("cuda")), torch.autograd.is_multithreading_enabled()))
        return backward(loss)

    monkeypatch.setattr(trainer, "_backward", watched)
    update(trainer, 4)
    assert seen == [(False, False)] * 3  # two are launched, one of them is also recorded
    assert not inside_graph()
    assert torch.autograd.is_multithreading_enabled()


def test_what_cuda_refuses_to_record_is_launched(build, monkeypatch, capsys):
    """It refuses at the end of the backward pass, which leaves gradients."""

    def fail(*args):
        raise RuntimeError("operation not permitted when stream is capturing")

    def refuse(launches, device):
        with monkeypatch.context() as patch:
            patch.setattr("charlm.training.step.clip_gradients", fail)
            launches()

    options = {"optimizer": {"name": "adamw"}}
    refused = build(replays=True, **options)
    refused._graph.graphs = Graphs(refuse)
    assert_same(update(refused, 6), update(build(replays=False, **options), 6))
    assert "graph    not used from now on: operation not permitted when" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("allowed", "on", "name", "records"),
    [
        ("update", "meta", "adamw", True),
        ("", "meta", "adamw", False),
        ("0", "meta", "adamw", False),
        ("update", "meta", "adagrad", False),
        ("update", None, "adamw", False),
    ],
)
def test_updates_are_recorded_where_asked_for_and_possible(trainer_of, monkeypatch, capsys, allowed, on, name, records):
    monkeypatch.setenv("CHARLM_GRAPHS", allowed)
    trainer = trainer_of(on=on, optimizer={"name": name})
    assert (trainer._graph is not None) == records
    said = "graph    updates are launched: CHARLM_GRAPHS=update takes one process, and no adagrad\n"
    assert (said in capsys.readouterr().err) == (name == "adagrad")
