"""What happens to a run from outside: signals, disks and folders that fail during it."""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import stat
import sys
from unittest import mock

import numpy as np
import pytest

from charlm.checkpoint import read_checkpoint
from tests.runs import assert_same_checkpoint, contents, untimed
from tests.training.conftest import full_disk

pytestmark = pytest.mark.usefixtures("kernels")
LAST = "checkpoints/last.safetensors"


@pytest.fixture
def assert_goes_on(cli, trained_run):
    """Resumes a run of the tiny config and compares it with one that nothing happened to."""

    def goes_on(run):
        assert cli("train", "--resume", "--run-dir", run).code == 0
        assert_same_checkpoint(trained_run / LAST, run / LAST)
        assert untimed(trained_run) == untimed(run)
        assert not [*run.rglob("*.tmp")]

    return goes_on


def test_a_second_ctrl_c_leaves_at_once_without_harm(tmp_path, cli, tiny_config, before_update, assert_goes_on):
    """The first comes in a step, the second in the middle of the checkpoint that follows."""
    run, files = tmp_path / "run", contextlib.ExitStack()

    def flush_half(descriptor):
        os.ftruncate(descriptor, 1000)
        signal.raise_signal(signal.SIGINT)

    def interrupt(_):
        signal.raise_signal(signal.SIGINT)
        files.enter_context(mock.patch("os.fsync", flush_half))

    before_update(4, interrupt)
    with files:
        result = cli("train", "--config", tiny_config, "--run-dir", run)
    assert result.code == 130
    assert result.err.endswith("\nstopped  SIGINT: ended at once\n")
    assert read_checkpoint(run / LAST).progress["step"] == 3
    assert_goes_on(run)


def test_a_folder_that_goes_is_not_made_again(tmp_path, cli, tiny_config, before_update, assert_goes_on):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    before_update(4, lambda _: run.rename(elsewhere))
    error = cli("train", "--config", tiny_config, "--run-dir", run).error
    assert error.startswith(f"{run}: removed, renamed or taken by another process")
    assert not run.exists()
    assert_goes_on(elsewhere)


@pytest.mark.parametrize(
    "name",
    [".lock", "metrics.jsonl", "samples.jsonl", "checkpoints", "train", "valid", ".config.yaml.tmp", "config.yaml"],
)
def test_a_run_folder_from_somebody_else_writes_and_removes_nothing_outside(tmp_path, cli, trained_run, name):
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(trained_run, run)
    shutil.copytree(run / "checkpoints", outside / "checkpoints")
    target, planted = outside / name, run / name
    if "." not in name:
        shutil.rmtree(planted, ignore_errors=True)
        target.mkdir(exist_ok=True)
        for file in ("step-00000001.safetensors", "step-00000009.safetensors", ".x.charlm.tmp"):
            (target / file).write_text("mine")
    else:
        planted.unlink(missing_ok=True)
        target.write_text('{"step": 1}\n{"step": 99}\n')
    planted.symlink_to(target)
    before = contents(outside)
    result = cli("train", "--resume", "--set", "train.max_steps=9", "--set", "train.save_every=1", "--run-dir", run)
    assert contents(outside) == before
    if name.endswith(("yaml", "tmp")):
        assert (result.code, planted.is_symlink()) == (0, name != "config.yaml")
    else:
        assert result.error.startswith(f"{planted}: found a link")


def test_a_process_that_takes_the_run_then_has_it_alone(tmp_path, cli, tiny_config, before_update, assert_goes_on):
    run, before, other = tmp_path / "run", {}, contextlib.ExitStack()

    def happen(_):
        (run / ".lock").unlink()
        fcntl.flock(other.enter_context((run / ".lock").open("w")), fcntl.LOCK_EX)
        before.update(contents(run))

    before_update(4, happen)
    with other:
        error = cli("train", "--config", tiny_config, "--run-dir", run).error
    assert error.startswith(f"{run}: removed, renamed or taken by another process")
    assert contents(run) == before
    assert_goes_on(run)


def test_a_signal_that_nohup_has_ignored_stops_nothing(tmp_path, cli, tiny_config, before_update):
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        before_update(4, lambda _: signal.raise_signal(signal.SIGHUP))
        assert cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run").code == 0
    finally:
        signal.signal(signal.SIGHUP, handler)


def test_a_terminal_that_takes_nothing_stops_nothing(tmp_path, cli, tiny_config, monkeypatch, assert_goes_on):
    # Its text stays in a buffer of Python: nothing closes it, as that fails too.
    full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", closefd=False)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", full)
        assert cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run").code == 0
    assert_goes_on(tmp_path / "run")


@pytest.mark.parametrize("answer", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
def test_a_network_disk_need_not_sync_folders_nor_map_or_lock_files(
    tmp_path, cli, tiny_config, monkeypatch, assert_goes_on, answer
):
    """But an error of the disk itself is one."""
    fsync = os.fsync

    def sync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(answer, os.strerror(answer))
        fsync(descriptor)

    refused = mock.Mock(side_effect=OSError(errno.ENODEV, "refused"))
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(np, "memmap", refused)
    result = cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run")
    if answer == errno.EIO:
        assert ": Input/output error; " in result.error
    else:
        assert refused.called
        assert_goes_on(tmp_path / "run")


def test_a_disk_that_fails_during_the_run(cli, tmp_path, tiny_config, before_update, assert_goes_on):
    """The checkpoint of the best evaluation, at step 3, is the last."""
    run, disk = tmp_path / "run", contextlib.ExitStack()
    before_update(4, lambda _: disk.enter_context(full_disk()))
    with disk:
        error = cli("train", "--config", tiny_config, "--run-dir", run).error
    assert error.startswith(f"{run / LAST}: cannot be written (")
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["best.safetensors", "last.safetensors"]
    assert read_checkpoint(run / LAST).progress["step"] == 3
    assert_goes_on(run)
