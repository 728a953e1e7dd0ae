"""Runs that train on while a checkpoint is written, as on a GPU."""

import threading

import pytest

import charlm.training.folder
from charlm.checkpoint import read_checkpoint
from charlm.errors import DivergenceError, RunError
from charlm.training.folder import RunFolder
from charlm.training.start import resume_run, start_run
from charlm.training.step import Trainer
from tests.runs import assert_same_checkpoint, untimed, with_max_steps

LAST = "checkpoints/last.safetensors"


@pytest.fixture
def behind(monkeypatch):
    monkeypatch.setattr("charlm.training.start.RunFolder", lambda path, **_: RunFolder(path, writes_behind=True))


@pytest.fixture
def slowed(monkeypatch):
    """Each write of a checkpoint waits until three more updates have been made, or the run waits for it."""
    update, wait, save = Trainer.update, RunFolder.wait, charlm.training.folder.save_checkpoint
    goes_on, steps = threading.Semaphore(0), [0]

    def counted(trainer):
        update(trainer)
        steps.append(trainer.state.step)
        if trainer.state.step % 3 == 0:
            goes_on.release()

    def waiting(folder):
        goes_on.release(100)
        wait(folder)
        while goes_on.acquire(blocking=False):
            pass

    def late(checkpoint, *names):
        assert goes_on.acquire(timeout=60)
        save(checkpoint, *names)
        late.updates_meanwhile = max(late.updates_meanwhile, steps[-1] - checkpoint.progress["step"])

    late.updates_meanwhile = 0
    monkeypatch.setattr(Trainer, "update", counted)
    monkeypatch.setattr(RunFolder, "wait", waiting)
    monkeypatch.setattr(charlm.training.folder, "save_checkpoint", late)
    return late


def test_files_are_those_of_a_run_that_waits(tmp_path, config_of, request):
    config = config_of(train={"ema": 0.9}, optimizer={"name": "adamw", "lr": 0.01})
    plain, late = tmp_path / "plain", tmp_path / "late"
    start_run(config, plain)
    slowed = [request.getfixturevalue(name) for name in ("behind", "slowed")][1]
    start_run(config, late)
    assert slowed.updates_meanwhile >= 2
    names = sorted(path.name for path in (plain / "checkpoints").iterdir())
    assert sorted(path.name for path in (late / "checkpoints").iterdir()) == names
    for name in names:
        assert_same_checkpoint(plain / "checkpoints" / name, late / "checkpoints" / name)
    assert untimed(plain) == untimed(late)


@pytest.mark.usefixtures("behind", "slowed")
def test_it_resumes(tmp_path, config_of):
    config = config_of(optimizer={"name": "adamw", "lr": 0.01, "schedule": {"name": "constant"}})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    start_run(with_max_steps(7)(config), parts)
    resume_run(parts, with_max_steps(12))
    assert_same_checkpoint(whole / LAST, parts / LAST)


@pytest.mark.usefixtures("behind")
def test_a_write_that_fails_ends_the_run(tmp_path, config_of, monkeypatch):
    save = charlm.training.folder.save_checkpoint

    def full_disk(checkpoint, *names):
        if checkpoint.progress["step"] == 5:
            raise RunError("no space left")
        save(checkpoint, *names)

    monkeypatch.setattr(charlm.training.folder, "save_checkpoint", full_disk)
    with pytest.raises(RunError, match="no space left"):
        start_run(config_of(), tmp_path / "run")
    assert read_checkpoint(tmp_path / "run" / LAST).progress["step"] == 4


@pytest.mark.usefixtures("behind", "slowed")
def test_a_run_that_diverges_ends_with_its_checkpoint_written(tmp_path, config_of, monkeypatch):
    update = Trainer.update

    def diverging(trainer):
        if trainer.state.step == 5:
            raise DivergenceError("step 6: not finite")
        update(trainer)

    monkeypatch.setattr(Trainer, "update", diverging)
    with pytest.raises(DivergenceError, match="not finite"):
        start_run(config_of(train={"on_divergence": "stop"}), tmp_path / "run")
    assert read_checkpoint(tmp_path / "run" / LAST).progress["step"] == 5


@pytest.mark.usefixtures("behind")
def test_a_run_goes_back_to_the_checkpoint_that_is_being_written(tmp_path, config_of, monkeypatch, slowed):
    update, faults = Trainer.update, [DivergenceError("step 6: not finite")]

    def diverging(trainer):
        if trainer.state.step == 5 and faults:
            raise faults.pop()
        update(trainer)

    monkeypatch.setattr(Trainer, "update", diverging)
    outcome = start_run(config_of(train={"on_divergence": "rollback"}), tmp_path / "run")
    assert outcome.step == 12
    assert read_checkpoint(tmp_path / "run" / LAST).progress["rollbacks"] == 1
