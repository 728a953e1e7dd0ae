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
    monkeypatch.setattr("charlm.training.start.RunFolder", lambda path, **_: RunFolder(path, writes_behind=True))
    return late


def test_files_are_those_of_a_run_that_waits(tmp_path, config_of, finished_run, behind):
    """Also of a run that was resumed."""
    start_run(config_of(), tmp_path / "late")
    assert behind.updates_meanwhile >= 2
    start_run(with_max_steps(7)(config_of()), tmp_path / "parts")
    resume_run(tmp_path / "parts", with_max_steps(12))
    names = sorted(path.name for path in (finished_run / "checkpoints").iterdir())
    for run in (tmp_path / "late", tmp_path / "parts"):
        assert untimed(finished_run) == untimed(run)
        assert sorted(path.name for path in (run / "checkpoints").iterdir()) == names
    for name in names:
        assert_same_checkpoint(finished_run / "checkpoints" / name, tmp_path / "late/checkpoints" / name)


def test_a_write_that_fails_ends_the_run(tmp_path, config_of, behind, monkeypatch):
    def full_disk(checkpoint, *names):
        if checkpoint.progress["step"] == 5:
            raise RunError("no space left")
        behind(checkpoint, *names)

    monkeypatch.setattr(charlm.training.folder, "save_checkpoint", full_disk)
    with pytest.raises(RunError, match="no space left"):
        start_run(config_of(), tmp_path / "run")
    assert read_checkpoint(tmp_path / "run" / LAST).progress["step"] == 4


@pytest.mark.usefixtures("behind")
def test_a_run_that_diverges_waits_for_its_checkpoint(tmp_path, config_of, before_update):
    """It ends with the checkpoint, or goes back to it."""

    def diverge(trainer):
        raise DivergenceError("step 6: not finite")

    before_update(5, diverge, times=2)
    with pytest.raises(DivergenceError, match="not finite"):
        start_run(config_of(train={"on_divergence": "stop"}), tmp_path / "stopped")
    assert read_checkpoint(tmp_path / "stopped" / LAST).progress["step"] == 5
    assert start_run(config_of(train={"on_divergence": "rollback"}), tmp_path / "back").step == 12
    assert read_checkpoint(tmp_path / "back" / LAST).progress["rollbacks"] == 1
