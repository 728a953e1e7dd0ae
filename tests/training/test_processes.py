"""Several processes, each with its part of the batch, are one."""

import contextlib
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import charlm.model
import charlm.training.step
from charlm.cells import CELLS
from charlm.checkpoint import Checkpoint
from charlm.config import parse_config
from charlm.data.corpus import load_configured_corpus
from charlm.errors import ConfigError, ProcessError
from charlm.inference.evaluation import evaluate
from charlm.model import build_model
from charlm.system.world import ALONE, World
from charlm.training.optimizer import build_optimizer
from charlm.training.processes import join_processes
from charlm.training.snapshot import restore_snapshot, take_snapshot
from charlm.training.step import Updater
from tests.pairwise import pairwise
from tests.processes import Team, team
from tests.text import words_text

PLACES = {"embedding": 0.1, "input": 0.1, "between_layers": 0.1, "output": 0.1, "state": 0.1, "weights": 0.1}


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def processes(request):
    with team(request.param) as found:
        yield found


@pytest.fixture
def raw(tmp_path):
    """A config that says nothing of what is tested."""
    file = tmp_path / "text.txt"
    file.write_text(words_text(6000))
    return {
        "data": {"source": str(file), "split": [0.9, 0.1, 0]},
        "model": {"cell": {"kind": "lstm", "hidden": 10}},
        "train": {"batch_size": 8, "bptt": 7, "max_steps": 20, "reset_state": 0},
        "optimizer": {"name": "adamw", "lr": 0.01},
        "threads": 1,
        "precision": "fp32",
        "device": "cpu",
    }


@contextlib.contextmanager
def in_float64():
    """Models and losses in float64; torch's fused optimizers scale gradients in float32, so without these."""

    def unfused(*args):
        optimizer = build_optimizer(*args)
        for group in (optimizer.defaults, *optimizer.param_groups):
            if "fused" in group:
                group["fused"] = False
        return optimizer

    def cross_entropy(logits, targets):
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)

    step = charlm.training.step
    with (
        mock.patch.object(step, "build_model", lambda *args: build_model(*args).double()),
        mock.patch.object(step, "build_optimizer", unfused),
        mock.patch.object(charlm.model, "cross_entropy", cross_entropy),
    ):
        yield


def updater_of(world: World, raw) -> Updater:
    config = parse_config(raw, "test")
    world.use(torch.device("cpu"))
    return Updater(config, load_configured_corpus(config.data), torch.device("cpu"), world)


def trained(world: World, raw, updates: int, start: Checkpoint | None = None) -> Checkpoint:
    """A checkpoint after some updates in float64, at most one minute in the clock of the run."""
    with in_float64():
        updater = updater_of(world, raw)
        updater.state.grad_norm = updater.state.grad_norm.double()
        if start:
            restore_snapshot(updater, start)
        for _ in range(updates):
            elapsed_s, _ = world.agree(updater.state.elapsed_s + (1.0 if world.is_first else 5.0), [])
            updater.state.set_time(elapsed_s)
            updater.update()
        snapshot = take_snapshot(updater, copied=True)
        world.same("weights", lambda: [tensor.tolist() for tensor in snapshot.weights.values()])
        return snapshot


def assert_equal(found: Checkpoint, wanted: Checkpoint, tolerance=1e-10):
    for group in ("weights", "averaged", "optimizer", "carried"):
        ours, theirs = getattr(found, group), getattr(wanted, group)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            torch.testing.assert_close(ours[name], tensor, rtol=tolerance, atol=tolerance)
    assert torch.equal(found.carried["rng.cpu"], wanted.carried["rng.cpu"])
    uncounted = ("interval_s",)
    assert {k: v for k, v in found.progress.items() if k not in uncounted} == {
        k: v for k, v in wanted.progress.items() if k not in uncounted
    }


@pairwise(
    kind=list(CELLS),
    model=[
        {"layers": 2, "dropout": PLACES, "zoneout": 0.2, "embedding": 6},
        {"layers": 2, "dropout": {**PLACES, "variational": True}, "residual": True},
        {},
    ],
    train=[
        {"reset_state": 0.3, "ema": 0.9, "activation_penalty": 0.5, "change_penalty": 0.5},
        {"vary_bptt": 0.4, "bptt_start": 2, "max_minutes": 0.5},
        {"loss": "last"},
    ],
    optimizer=[
        {"clip_norm": 0.1, "schedule": {"name": "cosine"}},
        {"name": "sgd", "clip_value": 0.01},
        {"name": "muon"},
    ],
)
def test_weights_are_those_of_one_process(processes: Team, raw, kind, model, train, optimizer):
    raw["model"] = {"cell": {"kind": kind, "hidden": 10}, **model}
    raw["train"] |= train
    raw["optimizer"] |= optimizer
    wanted = trained(ALONE, raw, 20)
    for found in processes(trained, raw, 20):
        assert_equal(found, wanted)
    assert wanted.progress["step"] == 20


@pytest.mark.parametrize("model", [{"dropout": PLACES, "zoneout": 0.2}, {}])
def test_any_number_of_processes_goes_on(processes: Team, raw, model):
    raw["model"] |= model
    raw["train"] |= {"reset_state": 0.3, "ema": 0.9}
    whole, half = trained(ALONE, raw, 20), trained(ALONE, raw, 10)
    first = processes(trained, raw, 10)[0]
    assert_equal(first, half)
    assert_equal(processes(trained, raw, 10, half)[0], whole)
    assert_equal(trained(ALONE, raw, 10, first), whole)
    # The same number of processes: every bit.
    assert_equal(processes(trained, raw, 10, first)[0], processes(trained, raw, 20)[0], tolerance=0)


def scores(world: World, raw, lengths) -> list[float]:
    torch.manual_seed(1)
    config = parse_config(raw, "test")
    corpus = load_configured_corpus(config.data)
    network = build_model(config.model, len(corpus.vocabulary))
    ids = corpus.splits["train"]
    return [evaluate(network, ids[:n], torch.device("cpu"), world=world).nats_per_char for n in lengths]


def test_scores_are_those_of_one_process(processes: Team, raw):
    """Also of texts with fewer streams than processes."""
    lengths = [2, 1000, 2100, 3100, 5400]
    wanted = scores(ALONE, raw, lengths)
    for found in processes(scores, raw, lengths):
        assert found == pytest.approx(wanted, rel=1e-7)


def refused_batch(world: World, raw) -> str:
    with pytest.raises(ConfigError) as found:
        join_processes(parse_config(raw, "test"), world)
    return str(found.value)


def test_a_batch_that_cannot_be_shared(processes: Team, raw):
    raw["train"]["batch_size"] = 11
    count = len(processes(refused_batch, raw))
    low = 11 // count * count
    for message in processes(refused_batch, raw):
        assert message == (
            f"train.batch_size: found 11 for {count} processes; allowed: multiples of {count}; "
            f"take {low} or {low + count}"
        )


# The world


def raising(world: World, rank: int, where: str) -> str:
    def function() -> int:
        if world.rank == rank:
            raise ConfigError("a.b: wrong") if rank else KeyError("k")
        return world.rank

    with pytest.raises((ProcessError, ConfigError, KeyError)) as found:
        getattr(world, where)(function)
    return f"{type(found.value).__name__} {found.value}"


@pytest.mark.parametrize("where", ["each", "in_turn"])
def test_an_error_of_one_is_an_error_of_all(processes: Team, where):
    first, second, *others = processes(raising, 1, where)
    assert (first, second) == ("ProcessError process 1: a.b: wrong", "ConfigError a.b: wrong")
    assert set(others) <= {first}


def test_an_error_of_the_first_is_an_error_of_all(processes: Team):
    first, *others = processes(raising, 0, "first")
    assert first == "KeyError 'k'"
    assert set(others) == {"ProcessError KeyError: 'k'"}


def results(world: World):
    turns: list[int] = []
    joined = world.join(torch.tensor([[10 * world.rank, 1]]), dim=1)
    total = world.total(0.1 + world.rank)
    return {
        "first": world.first(lambda: ("of", world.rank)),
        "each": world.each(lambda: world.rank),
        "in_turn": world.in_turn(lambda: turns.append(1) or world.rank),
        "turns": turns,
        "join": joined.tolist(),
        "part": world.part.of(joined, dim=1).tolist(),
        "total": total,
        "agree": world.agree(7.0 + world.rank, ["SIGTERM"] if world.rank == 1 else []),
    }


def test_what_the_methods_return(processes: Team):
    found = processes(results)
    size = len(found)
    for rank, one in enumerate(found):
        assert one == {
            "first": ("of", 0),
            "each": rank,
            "in_turn": rank,
            "turns": [1],
            "join": [[n for other in range(size) for n in (10 * other, 1)]],
            "part": [[10 * rank, 1]],
            "total": pytest.approx(0.1 * size + size * (size - 1) / 2),
            "agree": (7.0, ["SIGTERM"]),
        }


def differing(world: World) -> str:
    world.same("text", lambda: "equal")
    with pytest.raises(ProcessError) as found:
        world.same("text", lambda: world.rank // 1 == 1)
    return str(found.value)


def test_what_should_be_the_same_is_compared(processes: Team):
    first, second, *_ = processes(differing)
    assert first.startswith("text: process 0 and process 1 differ; allowed: the same in all processes")
    assert second.startswith("text: process 1 and process 0 differ")
