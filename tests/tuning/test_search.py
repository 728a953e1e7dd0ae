"""Whole searches: what they find, how they end, and how they go on."""

import itertools
import re
import time
from pathlib import Path
from unittest import mock

import pytest

from charlm.config import flatten, load_config
from charlm.errors import DataError, DeviceError, DivergenceError, RunError, StudyError
from charlm.runs import describe_run
from charlm.training.loop import Outcome
from charlm.training.start import start_run
from charlm.training.step import Trainer
from charlm.tuning import search as search_module
from charlm.tuning.report import draw, ranked, write_best
from charlm.tuning.search import Search
from charlm.tuning.study import Study, best
from tests.runs import interrupted_after, rows
from tests.tuning.conftest import OVER
from tests.tuning.test_settings import own_choice

BAD = {"lr": 1e-5, "weight_decay": 0.0}


def no_settings():
    raise AssertionError("the study is there")


def evaluated(trial):
    """The steps of a trial's evaluations."""
    return [row["step"] for row in rows(Path(trial.run_dir)) if row["split"] == "valid"]


def states(study):
    return [trial.state for trial in study.trials()]


@pytest.fixture
def updates(monkeypatch):
    """The steps of all updates."""
    steps = []
    update = Trainer.update

    def counted(trainer):
        update(trainer)
        steps.append(trainer.state.step)

    monkeypatch.setattr(Trainer, "update", counted)
    return steps


@pytest.fixture
def starting(monkeypatch):
    """Raises errors in place of the next starts of a trial; None: the trial starts."""

    def replace(*errors):
        effects = itertools.chain((error or mock.DEFAULT for error in errors), itertools.repeat(mock.DEFAULT))
        monkeypatch.setattr(search_module, "start_run", mock.Mock(wraps=start_run, side_effect=effects))

    return replace


def finished_trial(study, nats):
    """A trial of another process, which has this score at 30 percent and at its end, after 30 seconds."""
    with study.next_trial(None, lambda _: True) as trial:
        study.report(trial, 0.3, nats)
        study.end(trial, nats, run={"nats": nats, "minutes": 0.5, "steps": 20})


def test_a_search_finds_better_than_a_bad_learning_rate(study_of, config_of, search, suggestion, capsys):
    theirs = {"model": {"embedding": 4}, "train": {"bptt": 32}, "optimizer": {"lr": 0.03, "weight_decay": 0.0}}
    suggestion(lambda request: theirs)
    train = {"eval_every": 1, "save_every": 1, "patience": 9, "keep_checkpoints": 2}
    study = study_of(optimizer=BAD, train=train)
    assert search(study, 6) == ""
    trials, leader = study.trials(), best(study.trials())
    assert [trial.number for trial in trials] == [1, 2, 3, 4, 5, 6]
    assert trials[1].options == trials[0].options | {"optimizer.lr": 0.03}
    assert len({trial.options["optimizer.lr"] for trial in trials}) == 6
    assert leader == ranked(trials)[0]
    assert leader.nats == min(trial.nats for trial in trials) < trials[0].nats - 0.1
    for trial in trials:
        run = describe_run(study.folder / f"trial-{trial.number:04}")
        assert (run.step, run.best_nats) == (trial.steps, trial.nats)
    assert evaluated(trials[0]) == [6, 8, 10, 12, 14, 16, 18, 20]
    names = {path.name for path in (study.folder / "trial-0001/checkpoints").iterdir()}
    assert names == {"last.safetensors", "best.safetensors"}
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("trial ")]
    assert re.fullmatch(
        r"trial       1  (\d\.\d{4}) nats in \S+ s  best \1 \(trial 1\)  lr 1e-05 · .*  \S+ s left", lines[0]
    )
    assert len(lines) == 6
    path = write_best(study)
    assert flatten(load_config(path)) == flatten(config_of(train=train, optimizer=BAD)) | leader.options
    text = path.read_text()
    assert text.startswith(f"# The best of 6 trials of `charlm tune`: {leader.nats:.4f} nats per character after ")
    assert f"charlm train --config {path}\n" in text
    assert f"lr: {leader.options['optimizer.lr']}" in text
    assert "# searched 1e-05..0.1:log" in text


def test_charlm_s_own_choice_is_a_trial_although_it_lies_outside_of_the_space(study_of, search, suggestion):
    suggestion(own_choice)
    study = study_of(over=OVER[1:], optimizer={"name": "sgd", "lr": 1e-6})
    search(study, 2)
    with interrupted_after(7):
        assert search(study, 3) == "SIGINT"
    again = Study(study.folder, no_settings)
    assert search(again, 4) == ""
    own = again.trials()[2]
    assert [trial.chosen for trial in again.trials()] == [False, False, True, False]
    assert (states(again)[2], own.steps, own.options["optimizer.lr"]) == ("complete", 20, 0.04)
    trained = load_config(study.folder / "trial-0003/config.yaml")
    assert (trained.model.cell.kind, trained.optimizer.name, trained.model.embedding) == ("gru", "adagrad", 6)
    assert best(again.trials()) == own
    written = load_config(write_best(again))
    assert (written.model, written.optimizer) == (trained.model, trained.optimizer)
    assert "It is charlm's own choice for" in (study.folder / "best.yaml").read_text()
    assert draw(again)


def test_a_hopeless_trial_is_pruned(study_of, search, suggestion, capsys):
    suggestion(own_choice)  # it does not count among the three
    study = study_of(over=(*OVER, "optimizer.schedule.name=constant,cosine"), optimizer=BAD)
    for _ in range(3):
        finished_trial(study, nats=0.5)
    assert search(study, 4) == ""
    assert states(study)[3] == "complete"  # two others are too few
    finished_trial(study, nats=0.5)
    assert search(study, 6) == ""
    trial = study.trials()[-1]
    assert (trial.state, trial.steps) == ("pruned", 6)  # 30 percent
    assert evaluated(trial) == [6]
    assert " nats pruned after " in capsys.readouterr().err
    assert best(study.trials()).number != 6
    assert ranked(study.trials())[-1] == trial
    assert draw(study).read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_trial_goes_on_where_it_stopped(study_of, search, updates, tmp_path):
    with interrupted_after(steps=13):
        assert search(study_of(), 2) == "SIGINT"
    assert updates == list(range(1, 14))
    study = Study(tmp_path / "study", no_settings)
    assert states(study) == ["unfinished"]
    assert search(study, 2) == ""
    assert updates == [*range(1, 21), *range(1, 21)]
    assert states(study) == ["complete", "complete"]
    assert evaluated(study.trials()[0]) == [6, 8, 10, 12, 14, 16, 18, 20]
    reported = study._study.get_trials()[0].intermediate_values
    assert list(reported) == [30, 40, 50, 60, 70, 80, 90]


def test_a_trial_of_another_process_is_left_to_it_while_it_lives(study_of, search, updates, tmp_path):
    study = study_of()
    with study.next_trial(None, lambda _: True) as theirs:
        other = Study(tmp_path / "study", no_settings)
        assert search(other, 2) == ""
        assert states(other) == ["unfinished", "complete"]
        assert [trial.number for trial in study.trials()] == [1, 2]
    assert search(other, 2) == ""  # it was killed before its first checkpoint
    assert updates == [*range(1, 21), *range(1, 21)]
    assert states(study) == ["complete", "complete"]
    assert study.trials()[0].options == theirs.user_attrs["values"]


def test_a_process_killed_while_it_takes_a_trial(study_of, search):
    study = study_of()
    with mock.patch.object(Study, "_lock", side_effect=KeyboardInterrupt):
        assert search(study, 2) == "SIGINT"
    assert [(trial.state, trial.options) for trial in study.trials()] == [("unfinished", {})]
    assert (ranked(study.trials()), draw(study), write_best(study)) == (study.trials(), None, None)
    assert search(study, 1) == ""
    assert states(study) == ["complete"]


@pytest.mark.slow
def test_failed_trials_end_the_search_after_ten_in_a_row(study_of, search, starting, suggestion, capsys):
    suggestion(own_choice)  # the third fails too
    faults = ["step 3: found loss nan; lower it", "memory: too little", "train split: 5 characters"]
    errors = [DivergenceError(faults[0]), DeviceError(faults[1]), DataError(faults[2]), MemoryError()]
    errors.append(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    starting(*errors, None, *[DivergenceError("step 1: found nan")] * 10)
    study = study_of(optimizer={"name": "sgd"})
    assert search(study, 6) == ""
    *failed, other = study.trials()
    assert [trial.number for trial in failed if trial.chosen] == [3]
    faults += ["out of memory"] * 2
    assert [(trial.state, trial.fault, trial.nats) for trial in failed] == [("failed", fault, None) for fault in faults]
    assert other.state == "complete"
    assert f"trial       1  failed: {faults[0]}  lr 0.02 · " in capsys.readouterr().err
    assert draw(study)
    with pytest.raises(StudyError) as caught:
        search(study, 50)
    assert str(caught.value) == (
        f"{study.folder}: 10 trials in a row failed, the last with: step 1: found nan; allowed: a space in which some "
        "succeed; start another study with --over"
    )
    assert len(study.trials()) == 16


def test_kinds_are_searched_with_what_all_of_them_have(study_of, search):
    over = ["optimizer.lr=0.01..0.1", "train.batch_size=4", "model.cell.kind=lstm,rhn", "model.layers=1"]
    model = {"cell": {"kind": "rhn", "hidden": 8, "depth": 2}, "embedding": 4}
    study = study_of(over=over, model=model, train={"max_steps": 4})
    assert "model.cell.depth" not in study.settings.space
    assert search(study, 4) == ""
    assert {trial.options["model.cell.kind"] for trial in study.trials()} == {"lstm", "rhn"}
    assert not [trial.fault for trial in study.trials() if trial.fault]
    study = study_of("other", over=[*OVER, "optimizer.name=sgd", "optimizer.eps=1e-8"])
    assert search(study, 1) == ""
    assert ": optimizer.eps: unknown key; allowed: name, lr, " in study.trials()[0].fault


def test_a_full_disk_ends_the_search_and_its_trial_goes_on_later(study_of, search, starting, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    study = study_of()
    starting(KeyboardInterrupt(), RunError("disk full"))
    assert search(study, 1) == "SIGINT"
    with pytest.raises(RunError):
        search(study, 1)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)  # of the journal
        with pytest.raises(StudyError, match=r"study: No space left on device; allowed: a folder that can be written"):
            search(study, 1)
    assert search(study, 1) == ""
    assert states(study) == ["complete"]


# Time


@pytest.mark.parametrize(("seconds", "minutes"), [(29, None), (40, 0.65), (100, 1.0)])
def test_a_trial_begins_if_there_is_time_for_half_of_it(study_of, monkeypatch, seconds, minutes):
    study = study_of(minutes=1.0)
    configs = []

    def noted(config, folder, callbacks):
        configs.append(config)
        return Outcome(str(folder), "SIGTERM", 1, 1, 1.0, None, None, 0, 1)

    monkeypatch.setattr(search_module, "start_run", noted)
    ended = Search(study, time.perf_counter() + seconds, 1).run()
    assert ended == ("SIGTERM" if minutes else "")
    assert [config.train.max_minutes for config in configs] == ([pytest.approx(minutes, rel=0.02)] if minutes else [])
    for config in configs:
        assert (config.train.max_steps, config.train.max_epochs) == (None, None)


def test_the_time_of_trials_limited_by_steps_is_that_of_the_others(study_of):
    study = study_of()
    finished_trial(study, nats=1.0)  # in 30 seconds
    for left_s, elapsed_s, fits in ((14, 0, False), (14, 4, True), (20, 0, True)):
        assert Search(study, time.perf_counter() + left_s, None)._fits(elapsed_s) == fits


def test_a_trial_limited_by_steps_ends_in_time_whatever_the_time_of_day(study_of, search, monkeypatch):
    calls, real = itertools.count(), time.time
    monkeypatch.setattr("time.time", lambda: real() + 1e6 * (next(calls) > 10))
    study = study_of(train={"max_steps": 10**6})
    assert search(study, None, seconds=1) == ""
    [trial] = study.trials()
    assert trial.state == "complete"
    assert 60 * trial.minutes < 2
