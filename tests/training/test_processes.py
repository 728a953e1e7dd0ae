"""Several processes, each with its part of the batch, are one."""

import contextlib
import copy
import os
import shutil
import signal
import socket
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import charlm.inference.reader
import charlm.model
import charlm.training.loop
import charlm.training.plan
import charlm.training.start
import charlm.training.step
from charlm.cells import CELLS
from charlm.checkpoint import Checkpoint, read_checkpoint
from charlm.choice.families import USUAL, Request
from charlm.choice.suggest import suggest
from charlm.config import Config, parse_config
from charlm.data.corpus import CountedSources
from charlm.errors import CharlmError, ConfigError, RunError
from charlm.inference.evaluation import evaluate
from charlm.model import CharLM, build_model
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.folder import RunFolder
from charlm.training.machine import choose_machine
from charlm.training.optimizer import build_optimizer
from charlm.training.plan import cost_table, measure_cost
from charlm.training.start import resume_run, run_of_this_launch, start_run
from charlm.training.state import restore_snapshot, take_snapshot
from charlm.training.step import Trainer
from tests.processes import Team, team
from tests.runs import assert_same_checkpoint, untimed, with_max_steps
from tests.text import words_text

PLACES = {"embedding": 0.1, "input": 0.1, "between_layers": 0.1, "output": 0.1, "state": 0.1, "weights": 0.1}


@pytest.fixture(scope="module")
def processes():
    with team(2) as pair:
        yield pair


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
        mock.patch.object(step, "build_model", lambda *args, **more: build_model(*args, **more).double()),
        mock.patch.object(step, "build_optimizer", unfused),
        mock.patch.object(charlm.model.network, "cross_entropy", cross_entropy),
        mock.patch.object(charlm.inference.reader, "cross_entropy", cross_entropy),
    ):
        yield


def trainer_of(group: ProcessGroup, raw) -> Trainer:
    config = parse_config(raw, "test")
    return Trainer(config, CountedSources(config.data).corpus(), choose_machine(config, group))


def trained(group: ProcessGroup, raw, updates: int, start: Checkpoint | None = None) -> Checkpoint:
    """A checkpoint after some updates in float64, at most one minute in the clock of the run."""
    with in_float64():
        trainer = trainer_of(group, raw)
        trainer.state.grad_norm = trainer.state.grad_norm.double()
        if start:
            restore_snapshot(trainer, start)
        for _ in range(updates):
            elapsed_s, _ = group.agree(trainer.state.elapsed_s + (1.0 if group.is_first else 5.0), [])
            trainer.state.elapsed_s = elapsed_s
            trainer.update()
        snapshot = copy.deepcopy(take_snapshot(trainer))
        group.check_equal("weights", lambda: [tensor.tolist() for tensor in snapshot.weights.values()])
        return snapshot


def assert_equal(found: Checkpoint, wanted: Checkpoint, tolerance=1e-10):
    for group in ("weights", "averaged", "optimizer", "carried"):
        ours, theirs = getattr(found, group), getattr(wanted, group)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            torch.testing.assert_close(ours[name], tensor, rtol=tolerance, atol=tolerance)
    assert torch.equal(found.carried["rng.cpu"], wanted.carried["rng.cpu"])
    assert_near(timeless(found.progress), timeless(wanted.progress), max(tolerance, 1e-9))


def timeless(progress):
    return {name: value for name, value in progress.items() if not name.endswith("_s")}


def assert_near(found, wanted, tolerance):
    """Numbers nearly equal, all else equal."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == (pytest.approx(value, rel=tolerance) if isinstance(value, float) else value), name


MODELS = [
    {"layers": 2, "dropout": PLACES, "zoneout": 0.2, "embedding": 6},
    {"layers": 2, "dropout": {**PLACES, "variational": True}, "residual": True},
    {},
]
TRAIN = [
    {"reset_state": 0.3, "ema": 0.9, "activation_penalty": 0.5, "change_penalty": 0.5},
    {"read_share": 0.6, "max_minutes": 0.5},
    {},
]
OPTIMIZERS = [
    {"clip_norm": 0.1, "schedule": {"name": "cosine"}},
    {"name": "sgd", "clip_value": 0.01},
    {"name": "muon"},
]


@pytest.mark.parametrize(
    ("number", "kind"),
    [pytest.param(*each, marks=pytest.mark.slow if each[0] else ()) for each in enumerate(CELLS)],
)
def test_weights_are_those_of_one_process(processes: Team, raw, kind, number):
    """With nine kinds, every option of a model meets every option of training and every optimizer."""
    model, train = number % 3, number // 3 % 3
    raw["model"] = {"cell": {"kind": kind, "hidden": 10}, **MODELS[model]}
    raw["train"] |= TRAIN[train]
    raw["optimizer"] |= OPTIMIZERS[(model + train) % 3]
    wanted = trained(ONE_PROCESS, raw, 8)
    for found in processes(trained, raw, 8):
        assert_equal(found, wanted)
    assert wanted.progress["step"] == 8


def test_lines_are_those_of_one_process(processes: Team, raw):
    """Over two epochs and a half, each with an order of its own, also resumed."""
    Path(raw["data"]["source"]).write_text(words_text(1200))
    raw["data"]["unit"] = "line"
    raw["train"] |= {"batch_size": 4, "bptt": 30}
    wanted = trained(ONE_PROCESS, raw, 22)
    assert wanted.progress["epoch"] == 2
    for found in processes(trained, raw, 12, trained(ONE_PROCESS, raw, 10)):
        assert_equal(found, wanted)


def test_any_number_of_processes_goes_on(processes: Team, raw):
    raw["model"] |= {"dropout": PLACES, "zoneout": 0.2, "members": 2}
    raw["train"] |= {"reset_state": 0.3, "ema": 0.9}
    whole, half = trained(ONE_PROCESS, raw, 10), trained(ONE_PROCESS, raw, 5)
    first = processes(trained, raw, 5)[0]
    assert_equal(first, half)
    assert_equal(processes(trained, raw, 5, half)[0], whole)
    assert_equal(trained(ONE_PROCESS, raw, 5, first), whole)
    # The same number of processes: every bit.
    assert_equal(processes(trained, raw, 5, first)[0], processes(trained, raw, 10)[0], tolerance=0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", CELLS)
def test_gpus_are_one(raw, kind):
    """As many as there are, up to two, by NCCL."""
    raw["model"] = {"cell": {"kind": kind, "hidden": 10}, "layers": 2, "dropout": PLACES, "zoneout": 0.2}
    raw["train"] |= {"reset_state": 0.3, "ema": 0.9}
    raw["device"] = "cuda"
    wanted = trained(ONE_PROCESS, raw, 20)
    with team(min(2, torch.cuda.device_count())) as gpus:
        for found in gpus(trained, raw, 20):
            assert_equal(found, wanted, tolerance=1e-8)


def scores(group: ProcessGroup, raw, lengths) -> list[float]:
    torch.manual_seed(1)
    config = parse_config(raw, "test")
    corpus = CountedSources(config.data).corpus()
    network = build_model(config.model, len(corpus.vocabulary)).double()
    ids = corpus.splits["train"]
    with in_float64():
        return [evaluate(network, ids[:n], group=group).nats_per_char for n in lengths]


def test_scores_are_those_of_one_process(processes: Team, raw):
    """Also of texts with fewer streams than processes."""
    lengths = [2, 1000, 2100, 3100, 5400]
    wanted = scores(ONE_PROCESS, raw, lengths)
    for found in processes(scores, raw, lengths):
        assert found == pytest.approx(wanted, rel=1e-9)


# Whole runs


def run_of(group: ProcessGroup, raw, run, patches=(), again=False):
    """How a run ends in this process. patches: functions of the group, which return contexts.

    again: as processes that torchrun starts in place of those of the last call.
    """
    with contextlib.ExitStack() as held:
        if not again:
            held.enter_context(mock.patch.object(type(group), "recall", return_value=None))
        for patch in patches:
            held.enter_context(patch(group))
        try:
            if started_before := run_of_this_launch(group):
                outcome = resume_run(started_before, group=group)
            else:
                outcome = start_run(parse_config(raw, "test"), run, group=group)
        except CharlmError as error:
            return f"{type(error).__name__}: {error}"
    return outcome.reason, outcome.step, outcome.best_nats


def last_of(run) -> Checkpoint:
    return read_checkpoint(run / "checkpoints/last.safetensors")


@pytest.fixture
def busy(raw):
    """A config of a run that logs, evaluates, samples and saves."""
    raw["train"] |= {"log_every": 3, "eval_every": 4, "save_every": 5, "sample_every": 6, "ema": 0.9}
    return raw


def test_processes_and_one_process_write_the_same_and_resume_each_others_run(processes: Team, busy, tmp_path):
    whole = tmp_path / "whole"
    wanted = run_of(ONE_PROCESS, busy, whole)
    busy["train"]["max_steps"] = 10
    outcomes = processes(run_of, busy, tmp_path / "a")
    assert outcomes == [outcomes[0]] * 2
    assert outcomes[0][:2] == ("max_steps", 10)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    resume_run(tmp_path / "a", with_max_steps(20))
    assert processes(resumed, tmp_path / "b") == [20, 20]
    names = sorted(path.name for path in (whole / "checkpoints").iterdir())
    for run in (tmp_path / "a", tmp_path / "b"):
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == names
        assert_equal(last_of(run), last_of(whole), tolerance=1e-3)
        assert last_of(run).progress["best_nats"] == pytest.approx(wanted[2], abs=1e-5)
        for one, other in zip(untimed(run), untimed(whole), strict=True):
            assert_near(one, other, 1e-3)


def resumed(group: ProcessGroup, run, patches=()) -> int:
    with contextlib.ExitStack() as held:
        for patch in patches:
            held.enter_context(patch(group))
        return resume_run(run, with_max_steps(20), group).step


def test_processes_that_are_started_again_resume_their_run(processes: Team, busy, tmp_path):
    """And no other, whatever folder they are given."""
    busy["train"]["max_steps"] = 10
    processes(run_of, busy, tmp_path / "run")
    found = processes(run_of, busy | {"seed": 2}, tmp_path / "other", (), True)
    assert {one[:2] for one in found} == {("max_steps", 10)}
    assert not (tmp_path / "other").exists()
    shutil.rmtree(tmp_path / "run")
    first, *_ = processes(run_of, busy, tmp_path / "run", (), True)
    assert first == (
        f"RunError: {tmp_path}/run: the run that is to go on is not on this machine, which is now the first; allowed: "
        "a folder on a disk that all machines share"
    )


def after_update(happen):
    """Calls a function with the trainer after each update."""
    update = Trainer.update

    def updated(trainer):
        update(trainer)
        happen(trainer)

    return mock.patch.object(Trainer, "update", updated)


def interrupted(group: ProcessGroup):
    """A signal to the last process in the seventh update."""
    return after_update(lambda trainer: group.rank and trainer.state.step == 7 and os.kill(os.getpid(), signal.SIGTERM))


def interrupted_evaluation(group: ProcessGroup):
    """A signal to the last process, which has no stream of the validation split."""

    def evaluated(*arguments, **options):
        if group.rank:
            os.kill(os.getpid(), signal.SIGHUP)
        return evaluate(*arguments, **options)

    return mock.patch.object(charlm.training.loop, "evaluate", evaluated)


def test_a_signal_to_one_stops_all_after_the_same_step_and_costs_no_bit(processes: Team, busy, tmp_path):
    whole, run = tmp_path / "whole", tmp_path / "run"
    processes(run_of, busy, whole)
    assert {one[:2] for one in processes(run_of, busy, run, [interrupted_evaluation])} == {("SIGHUP", 4)}
    assert {row["split"] for row in untimed(run)} == {"train"}
    assert set(processes(resumed, run, [interrupted])) == {7}
    processes(resumed, run)
    for name in ("last", "best"):
        assert_same_checkpoint(*(each / f"checkpoints/{name}.safetensors" for each in (whole, run)))
    assert untimed(whole) == untimed(run)


def full_disk(group: ProcessGroup):
    save = RunFolder.save

    def saved(folder, checkpoint, **options):
        if checkpoint.progress["step"] >= 5:
            raise RunError("no space left")
        save(folder, checkpoint, **options)

    return mock.patch.object(RunFolder, "save", saved)


def other_weights(group: ProcessGroup):
    """Weights that another process does not have."""
    return after_update(lambda trainer: trainer.parameters[0].data.add_(1e-6 * group.rank))


def other_text(group: ProcessGroup):
    return text_of(group, lambda source: Path(source).write_text(words_text(6000, seed=group.rank)))


def no_text(group: ProcessGroup):
    return text_of(group, lambda source: group.is_first and shutil.copy(source[:-1], source))


def text_of(group: ProcessGroup, write):
    def text(data):
        source = f"{data.source}{group.rank}"
        write(source)
        return CountedSources(data.model_copy(update={"source": source}))

    return mock.patch.object(charlm.training.start, "CountedSources", text)


def nan_once(group: ProcessGroup):
    """In the last process's part of the batch, at step 8, in the first try."""
    own_loss, faults = CharLM.window_loss, [torch.nan]

    def loss_of(*arguments, **penalties):
        loss = own_loss(*arguments, **penalties)
        counted.append(1)
        if group.rank and len(counted) == 8:
            loss = loss._replace(objective=loss.objective * faults.pop())
        return loss

    counted: list[int] = []
    return mock.patch.object(CharLM, "window_loss", loss_of)


DIFFER = "process 0 and process 1 differ; allowed: the same in all processes; use the same files, packages and kind of"


@pytest.mark.parametrize(
    ("fault", "first", "other"),
    [
        (full_disk, "RunError: no space left", "CharlmError: process 0: no space left"),
        (other_weights, f"CharlmError: weights: {DIFFER}", "CharlmError: weights: process 1 and process 0 differ"),
        (other_text, f"CharlmError: text: {DIFFER}", "CharlmError: text: process 1 and process 0 differ"),
        (no_text, "CharlmError: process 1: /", "DataError: /"),
        (nan_once, *["DivergenceError: update 8: found loss nan, gradient norm nan; allowed: finite numbers"] * 2),
    ],
)
def test_a_fault_of_one_process_ends_all(processes: Team, busy, tmp_path, fault, first, other):
    busy["train"] |= {"on_divergence": "stop", "eval_every": 0}
    errors = processes(run_of, busy, tmp_path / "run", [fault])
    assert errors[0].startswith(first)
    assert errors[1].startswith(other)
    assert (tmp_path / "run").exists() == (fault not in (other_text, no_text))
    if fault is full_disk:
        assert last_of(tmp_path / "run").progress["step"] == 0


def test_nan_in_one_is_a_rollback_in_all(processes: Team, busy, tmp_path):
    busy["train"]["on_divergence"] = "rollback"
    outcomes = processes(run_of, busy, tmp_path / "back", [nan_once])
    assert {one[:2] for one in outcomes} == {("max_steps", 20)}
    assert last_of(tmp_path / "back").progress["rollbacks"] == 1


# The group


def raising(group: ProcessGroup, rank: int, where: str, error: Exception) -> tuple[str, bool]:
    """The error that this process gets from that of another, and whether another one prints it."""

    def function() -> int:
        if group.rank == rank:
            raise error
        return group.rank

    with pytest.raises((CharlmError, KeyError)) as caught:
        getattr(group, where)(function)
    return f"{type(caught.value).__name__} {caught.value}", getattr(caught.value, "already_reported", False)


def test_a_port_that_accepts_and_says_nothing_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("charlm.system.process_group._SLACK_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("MASTER_PORT", str(silent.getsockname()[1]))
        with pytest.raises(
            CharlmError, match=r"^processes: not all 2 have come \(127.0.0.1:[0-9]+ does not answer\); "
        ):
            ProcessGroup(1, 2, timeout_s=0.1)


CHARLMS, PROGRAMS = ConfigError("a.b: wrong"), KeyError("k")


@pytest.mark.parametrize(
    ("rank", "where", "error", "own", "others"),
    [
        (1, "on_each", CHARLMS, ("ConfigError a.b: wrong", True), "CharlmError process 1: a.b: wrong"),
        (1, "local_first", CHARLMS, ("ConfigError a.b: wrong", True), "CharlmError process 1: a.b: wrong"),
        (1, "on_each", PROGRAMS, ("KeyError 'k'", False), "CharlmError process 1: KeyError: 'k'"),
        (0, "on_first", CHARLMS, ("ConfigError a.b: wrong", False), "CharlmError process 0: a.b: wrong"),
        (0, "on_first", PROGRAMS, ("KeyError 'k'", False), "CharlmError process 0: KeyError: 'k'"),
    ],
)
def test_an_error_of_one_is_an_error_of_all_and_one_prints_it(processes: Team, rank, where, error, own, others):
    """A mistake of the user's the first process, a fault of the program the process where it happens."""
    found = processes(raising, rank, where, error)
    assert found[rank] == own
    assert found[1 - rank] == (others, not (rank == 1 and error is CHARLMS))


def results(group: ProcessGroup):
    turns: list[int] = []
    whole = group.all_gather(torch.tensor([[10 * group.rank, 1]]), dim=1)
    spread = torch.full((2,), group.rank + 5.0)
    group.broadcast_(spread)
    total = group.sum(0.1 + group.rank)
    return {
        "first": group.on_first(lambda: ("of", group.rank)),
        "each": group.on_each(lambda: group.rank),
        "in_turn": group.local_first(lambda: turns.append(1) or group.rank),
        "turns": turns,
        "whole": whole.tolist(),
        "part": group.shard.of(whole, dim=1).tolist(),
        "spread": spread.tolist(),
        "total": total,
        "agree": group.agree(7.0 + group.rank, ["SIGTERM"] if group.rank == 1 else []),
    }


def assert_results(found):
    size = len(found)
    for rank, one in enumerate(found):
        assert one == {
            "first": ("of", 0),
            "each": rank,
            "in_turn": rank,
            "turns": [1],
            "spread": [5.0, 5.0],
            "whole": [[n for other in range(size) for n in (10 * other, 1)]],
            "part": [[10 * rank, 1]],
            "total": pytest.approx(0.1 * size + size * (size - 1) / 2),
            "agree": (7.0, ["SIGTERM"]),
        }


def test_what_the_methods_return(processes: Team):
    assert_results(processes(results))


@pytest.mark.slow
def test_more_than_two_processes(raw):
    """Also more than the streams of a validation split."""
    raw["model"] = {"cell": {"kind": "gru", "hidden": 10}, **MODELS[0]}
    raw["train"] |= TRAIN[0]
    lengths = [2, 1000, 2100, 3100, 5400]
    wanted, wanted_scores = trained(ONE_PROCESS, raw, 8), scores(ONE_PROCESS, raw, lengths)
    with team(4) as four:
        assert_results(four(results))
        for found in four(trained, raw, 8):
            assert_equal(found, wanted)
        for found in four(scores, raw, lengths):
            assert found == pytest.approx(wanted_scores, rel=1e-9)


def threads(group: ProcessGroup) -> tuple[list[int], int]:
    """Numbers of threads, and how many lines were said about them."""
    found = []
    with mock.patch("charlm.system.console.say") as say:
        for set_by_user in ("1", "1", "3"):
            with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": set_by_user}):
                found += [group.threads(0), group.threads(7)]
    return found, say.call_count


def test_processes_share_the_cores_unless_the_user_says_otherwise(processes: Team):
    cores = len(os.sched_getaffinity(0))
    numbers, lines = zip(*processes(threads), strict=True)
    share = max(1, cores // len(numbers))
    assert numbers == ([share, 7, share, 7, 0, 7],) * len(numbers)
    assert max(lines) <= 1


def planned(group: ProcessGroup, raw) -> dict | str:
    with mock.patch.multiple(charlm.training.plan, _MEASURE_S=0.0):
        try:
            return measure_cost(parse_config(raw, "test"), group)
        except ConfigError as error:
            return str(error)


def test_a_plan_is_for_the_whole_batch_which_must_be_shared_evenly(processes: Team, raw):
    for found in processes(planned, raw):
        assert found["processes"] == 2
        assert found["chars_per_s"] == pytest.approx(8 * 7 / found["step_s"])
        assert found["communication_s"] > 0
        assert "processes, " in cost_table(found)["speed"]
    assert "processes" not in cost_table(planned(ONE_PROCESS, raw))["speed"]
    raw["train"]["batch_size"] = 11
    refused = "train.batch_size: found 11 for 2 processes; allowed: multiples of 2"
    assert processes(planned, raw) == [refused] * 2


def suggested(group: ProcessGroup, source) -> tuple[Config, int]:
    """The settings that this process gets for a text, and how many updates it makes to measure them."""
    choose_machine(parse_config({}, "test"), cells=[CELLS[family.kind]() for family in USUAL])  # in the tests' cache
    update = Trainer.update
    with mock.patch.object(Trainer, "update", autospec=True, side_effect=update) as updates:
        config = suggest(Request(source, 0.05, ["device=cpu"]), group).config
    return config, updates.call_count


@pytest.mark.slow
def test_processes_measure_together(processes: Team, raw, tmp_path):
    found = processes(suggested, raw["data"]["source"])
    assert found == [found[0]] * len(found)
    assert found[0][1] > 0
    missing = processes(refused_text, tmp_path / "none.txt")
    assert missing[0].startswith(f"DataError: {tmp_path}/none.txt: ")
    assert set(missing[1:]) == {missing[0].replace("DataError: ", "CharlmError: process 0: ")}


def refused_text(group: ProcessGroup, source) -> str:
    with pytest.raises(CharlmError) as found:
        suggest(Request(str(source), 0.05), group)
    return f"{type(found.value).__name__}: {found.value}"
