"""Several processes, each with its part of the batch, are one."""

import contextlib
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from charlm.checkpoint import Checkpoint, read_checkpoint
from charlm.config import parse_config
from charlm.data.corpus import CountedSources
from charlm.errors import CharlmError
from charlm.new_run import TrainOptions, start
from charlm.system.process_group import ONE_PROCESS, ProcessGroup
from charlm.training.machine import choose_machine
from charlm.training.signals import SIGNALS
from charlm.training.snapshot import restore_snapshot, take_snapshot
from charlm.training.start import resume_run, run_of_this_launch, start_run
from charlm.training.step import Trainer
from tests.processes import team
from tests.runs import before_updates, interrupted_after, untimed, with_max_steps
from tests.text import words_text
from tests.training.conftest import assert_same_run, full_disk

SIZE = 3
TOLERANCE = 1e-4
LAST = "checkpoints/last.safetensors"


@pytest.fixture(scope="module")
def processes(libraries, tmp_path_factory):
    """With the compiled kernels in their cache."""
    cache = tmp_path_factory.mktemp("cache")
    shutil.copytree(libraries, cache / "kernels")
    with team(SIZE, CHARLM_CACHE=str(cache)) as all_of_them:
        yield all_of_them


@pytest.fixture
def raw(tmp_path):
    """A config of a run that logs, evaluates, samples and saves."""
    file = tmp_path / "text.txt"
    file.write_text(words_text(9000))
    often = {"log_every": 3, "eval_every": 4, "save_every": 5, "sample_every": 6}
    return {
        "data": {"source": str(file), "split": [0.6, 0.4, 0]},
        "model": {"cell": {"kind": "lstm", "hidden": 10}},
        "train": {"batch_size": 6, "bptt": 7, "max_steps": 20, "reset_state": 0, "ema": 0.9, **often},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9},
        "threads": 1,
        "precision": "fp32",
        "device": "cpu",
    }


def trained(group: ProcessGroup, raw, updates: int, start: Checkpoint | None = None) -> Checkpoint:
    """A checkpoint after so many updates more than the one to start from."""
    config = parse_config(raw, "test")
    trainer = Trainer(config, CountedSources(config.data).corpus(), choose_machine(config, group))
    if start:
        restore_snapshot(trainer, start)
    for _ in range(updates):
        trainer.update()
    return take_snapshot(trainer)


def assert_near(found: Checkpoint, wanted: Checkpoint) -> None:
    """All but for times is equal, up to the rounding of sums."""
    for group in ("weights", "averaged", "optimizer", "carried"):
        torch.testing.assert_close(getattr(found, group), getattr(wanted, group), rtol=TOLERANCE, atol=TOLERANCE)
    assert_near_numbers(found.progress, wanted.progress)


def assert_near_numbers(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if not name.endswith("_s"):
            assert found[name] == (pytest.approx(value, rel=TOLERANCE) if isinstance(value, float) else value), name


PLACES = {"embedding": 0.1, "input": 0.1, "between_layers": 0.1, "output": 0.1, "state": 0.1, "weights": 0.1}
CASES = {
    "draws": {
        "model": {"layers": 2, "dropout": PLACES, "zoneout": 0.2, "embedding": 6},
        "train": {"reset_state": 0.3, "activation_penalty": 0.5, "change_penalty": 0.5},
        "optimizer": {"clip_norm": 0.1, "schedule": {"name": "cosine"}},
    },
    "variational draws": {
        "model": {
            "cell": {"kind": "rhn", "hidden": 10},
            "layers": 2,
            "learned_start": True,
            "dropout": {**PLACES, "variational": True},
        },
        "train": {"read_share": 0.3, "loss": "last"},
    },
    "members, records": {
        "data": {"records": "\n"},
        "model": {"cell": {"kind": "rhn", "hidden": 10}, "members": 2, "learned_start": True, "dropout": PLACES},
        "train": {"bptt": 150},  # an epoch has six updates
        "optimizer": {"clip_value": 0.01, "clip_norm": 0.5},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_processes_makes_the_updates_of_one_and_goes_on_from_those_of_another(processes, raw, case):
    for section, options in CASES[case].items():
        raw[section] |= options
    whole, half = trained(ONE_PROCESS, raw, 10), trained(ONE_PROCESS, raw, 5)
    for found in processes(trained, raw, 5):
        assert_near(found, half)
    for found in processes(trained, raw, 5, half):
        assert_near(found, whole)
    assert_near(trained(ONE_PROCESS, raw, 5, found), trained(ONE_PROCESS, raw, 15))


# Whole runs


def run_of(group: ProcessGroup, raw, run: Path, disturb=None) -> tuple[str, int] | str:
    """How a run, new or resumed, ends in this process: the limit and the step, or the error that it prints.

    disturb: a function of group and config that may return a context.
    """
    context = disturb(group, raw) if disturb else None
    with context or contextlib.nullcontext():
        try:
            if run.exists():
                outcome = resume_run(run, with_max_steps(raw["train"]["max_steps"]), group)
            else:
                outcome = start_run(parse_config(raw, "test"), run, group=group)
        except CharlmError as error:
            return "" if getattr(error, "already_reported", False) else f"{type(error).__name__}: {error}"
    return outcome.reason, outcome.step


def is_last(group: ProcessGroup) -> bool:
    return group.rank == group.size - 1


def interrupted(group, raw):
    return interrupted_after(7, signal.SIGTERM) if is_last(group) else None


def test_processes_write_what_one_process_writes_which_resumes_their_run(processes, raw, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_of(ONE_PROCESS, raw, whole)
    raw["train"]["max_steps"] = 10
    assert processes(run_of, raw, parts) == [("max_steps", 10)] * SIZE
    assert processes(run_of_this_launch) == [parts] * SIZE  # what torchrun would start again goes on with it
    raw["train"]["max_steps"] = 20
    assert run_of(ONE_PROCESS, raw, parts) == ("max_steps", 20)
    assert sorted(path.relative_to(parts) for path in parts.glob("*/*.safetensors")) == sorted(
        path.relative_to(whole) for path in whole.glob("*/*.safetensors")
    )
    assert_near(read_checkpoint(parts / LAST), read_checkpoint(whole / LAST))
    for one, other in zip(untimed(parts), untimed(whole), strict=True):
        assert_near_numbers(one, other)


def test_a_signal_to_one_stops_all_after_the_same_step_and_costs_no_bit(processes, raw, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    processes(run_of, raw, whole)
    assert processes(run_of, raw, parts, interrupted) == [("SIGTERM", 7)] * SIZE
    processes(run_of, raw, parts)
    assert_same_run(whole, parts)


@contextlib.contextmanager
def disk_of_the_first(group, raw):
    """It is full after the fourth update."""
    disk = contextlib.ExitStack()
    with disk, before_updates(4, lambda _: group.is_first and disk.enter_context(full_disk())):
        yield


def other_weights(group, raw):
    return before_updates(4, lambda trainer: trainer.parameters[0].data.add_(1e-6 * is_last(group)))


def weights_that_are_not_finite(group, raw):
    return before_updates(7, lambda trainer: is_last(group) and trainer.parameters[0].data.fill_(torch.nan))


def other_text(group, raw):
    raw["data"]["source"] += str(group.rank)
    Path(raw["data"]["source"]).write_text(words_text(6000, seed=group.rank))


def no_text(group, raw):
    raw["data"]["source"] += ".none" * is_last(group)


def indivisible_batch(group, raw):
    raw["train"]["batch_size"] = 7


@pytest.mark.parametrize(
    ("fault", "printed"),
    [
        (disk_of_the_first, "RunError: /"),
        (other_weights, "CharlmError: weights: processes 0 and 2 differ"),
        (weights_that_are_not_finite, "DivergenceError: update 8: "),
        (other_text, "CharlmError: text: processes 0 and 1 differ"),
        (no_text, "CharlmError: process 2: /"),
        (indivisible_batch, "ConfigError: train.batch_size: found 7 for 3 processes"),
    ],
)
def test_a_fault_of_one_process_ends_all_and_the_first_prints_it(processes, raw, tmp_path, fault, printed):
    found = processes(run_of, raw, tmp_path / "run", fault)
    assert found[0].startswith(printed)
    assert found[1:] == ["", ""]
    assert (tmp_path / "run").exists() == (fault not in (other_text, no_text, indivisible_batch))


def logged(group: ProcessGroup, raw, run: Path) -> tuple[str, bool]:
    """The error of a run whose function for rows, which the first process alone has, fails."""

    def fail(row):
        raise KeyError

    with pytest.raises((KeyError, CharlmError)) as caught:
        start_run(parse_config(raw, "test"), run, group=group, on_row=fail if group.is_first else None)
    return caught.type.__name__, getattr(caught.value, "already_reported", False)


def test_an_exception_of_on_log_ends_all(processes, raw, tmp_path):
    wanted = [("KeyError", False), ("CharlmError", True), ("CharlmError", True)]
    assert processes(logged, raw, tmp_path / "run") == wanted


def started(group: ProcessGroup, raw, other) -> str:
    """What a run says whose last process has other options."""
    options = TrainOptions(raw["data"]["source"], None, Path("lstm"), {}, run_dir=Path("run"))
    try:
        start(replace(options, **other) if is_last(group) else options, group, 0.0)
    except CharlmError as error:
        return "" if error.already_reported else str(error)
    return "started"


@pytest.mark.parametrize(
    "other", [{"text": "none"}, {"config": Path("gru")}, {"settings": {"optimizer.lr": 1}}, {"run_dir": Path("other")}]
)
def test_other_options_of_a_process_are_refused(processes, raw, other):
    found = processes(started, raw, other)
    assert found[0].startswith(f"{next(iter(other))}: processes 0 and 2 differ; ")
    assert found[1:] == ["", ""]


def test_nan_in_one_is_a_rollback_in_all(processes, raw, tmp_path):
    raw["train"]["on_divergence"] = "rollback"
    outcomes = processes(run_of, raw, tmp_path / "run", weights_that_are_not_finite)
    assert outcomes == [("max_steps", 20)] * SIZE
    assert read_checkpoint(tmp_path / "run" / LAST).progress["rollbacks"] == 1


# The group


def agreed(group: ProcessGroup) -> tuple[float, list[str]]:
    return group.agree(group.rank + 5.0, ["SIGTERM"] if is_last(group) else [], SIGNALS)


def test_the_clock_of_the_first_and_the_signals_of_all_count(processes):
    assert processes(agreed) == [(5.0, ["SIGTERM"])] * SIZE


def test_processes_of_a_machine_share_its_cores_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.setattr("charlm.system.process_group.count_cores", lambda: 8)
    group = ProcessGroup(local_size=2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert (group.threads(0), group.threads(7)) == (4, 7)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert (group.threads(0), group.threads(7)) == (0, 7)
