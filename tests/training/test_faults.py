"""What happens to a run from outside: signals, disks and folders that fail during it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from charlm.checkpoint import read_checkpoint
from charlm.system.lock import is_locked
from tests.conftest import ROOT, Result
from tests.runs import assert_same_checkpoint, contents, untimed

pytestmark = pytest.mark.usefixtures("kernels")
LAST = "checkpoints/last.safetensors"

# charlm, changed by the lines between: `after_step_4` is called where a test has defined it.
BEFORE = """
import os, signal, subprocess, sys, time
from charlm.training.step import Trainer

run = sys.argv[-1]
after_step_4 = lambda: None
update = Trainer.update

def updated(trainer):
    update(trainer)
    if trainer.state.step == 4:
        after_step_4()

Trainer.update = updated
"""
AFTER = """
from charlm.cli import main
sys.argv = ["charlm", *sys.argv[1:]]
main()
"""


def changed(lines: str, *words: object, run: Path) -> list[str]:
    """The command of a changed `charlm train`."""
    return [sys.executable, "-c", BEFORE + lines + AFTER, "train", *map(str, words), "--run-dir", str(run)]


def error_of(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    return Result(done.returncode, done.stdout, done.stderr).error


@pytest.fixture
def assert_goes_on(cli: Callable[..., Result], trained_run: Path) -> Callable[[Path], None]:
    """Resumes a run of the tiny config and compares it with one that nothing happened to."""

    def goes_on(run: Path) -> None:
        assert cli("train", "--resume", "--run-dir", run).code == 0
        assert_same_checkpoint(trained_run / LAST, run / LAST)
        assert untimed(trained_run) == untimed(run)
        assert not [*run.rglob("*.tmp")]

    return goes_on


# Takes the first Ctrl-C in a step and the second in the middle of the next checkpoint; asks for each.
SIGNALLED = """
def after_step_4():
    print("first", flush=True)
    until_s = time.monotonic() + 30
    while signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    os.fsync = flush_half

def flush_half(descriptor):
    os.ftruncate(descriptor, 1000)
    print("second", flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_at_once_without_harm(tmp_path, tiny_config, assert_goes_on):
    run = tmp_path / "run"
    command = changed(SIGNALLED, "--config", tiny_config, run=run)
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for which in ("first", "second"):
            assert process.stdout.readline() == f"{which}\n"
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "stopped" not in err
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["best.safetensors", "last.safetensors"]
    assert read_checkpoint(run / LAST).progress["step"] == 3
    assert_goes_on(run)


@pytest.mark.parametrize("event", ["renamed", "replaced", "removed", "made again"])
def test_a_folder_that_goes_during_the_run_is_not_made_again(
    tmp_path, cli, tiny_config, before_update, assert_goes_on, event
):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"

    def happen(_):
        if event in ("renamed", "replaced"):
            run.rename(elsewhere)
        else:
            shutil.rmtree(run)
        if event in ("replaced", "made again"):
            run.mkdir()

    before_update(4, happen, times=1)
    error = cli("train", "--config", tiny_config, "--run-dir", run).error
    assert error.startswith(f"{run}: removed, renamed or taken by another process")
    assert not [*run.rglob("*")]
    assert run.exists() == (event in ("replaced", "made again"))
    if elsewhere.exists():
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


def test_a_lock_that_is_deleted_during_the_run_is_made_again(tmp_path, cli, tiny_config, before_update):
    run, locks = tmp_path / "run", []
    before_update(3, lambda _: (run / ".lock").unlink(), times=1)
    before_update(5, lambda _: locks.append(is_locked(run)), times=1)
    assert cli("train", "--config", tiny_config, "--run-dir", run).code == 0
    assert locks == [True]


def test_a_process_that_takes_the_run_then_has_it_alone(tmp_path, cli, tiny_config, before_update, assert_goes_on):
    run, before = tmp_path / "run", {}

    def happen(_):
        (run / ".lock").unlink()
        other = [sys.executable, "-m", "charlm", "train", "--resume", "--run-dir", str(run)]
        subprocess.run(other, cwd=ROOT, capture_output=True, check=True)
        before.update(contents(run))

    before_update(4, happen, times=1)
    error = cli("train", "--config", tiny_config, "--run-dir", run).error
    assert error.startswith(f"{run}: removed, renamed or taken by another process")
    assert contents(run) == before
    assert_goes_on(run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # a background job's, and nohup's
def test_a_signal_that_the_shell_has_ignored_stops_nothing(tmp_path, cli, tiny_config, before_update, number):
    handler = signal.signal(number, signal.SIG_IGN)
    try:
        before_update(4, lambda _: signal.raise_signal(number), times=1)
        assert cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run").code == 0
    finally:
        signal.signal(number, handler)
    assert read_checkpoint(tmp_path / "run" / LAST).progress["step"] == 6


def test_a_terminal_that_takes_nothing_stops_nothing(tmp_path, cli, tiny_config, monkeypatch, assert_goes_on):
    # Its text stays in a buffer of Python: nothing closes it, as that fails too.
    full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w", closefd=False)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", full)
        assert cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run").code == 0
    assert_goes_on(tmp_path / "run")


@pytest.fixture
def mounting(tmp_path: Path) -> list[str]:
    """The beginning of a command that may mount what no one else sees."""
    if shutil.which("unshare") is None:
        pytest.skip("mounts are made with Linux's unshare")
    prefix = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    trial = subprocess.run([*prefix, "mount", "-t", "tmpfs", "tmpfs", tmp_path], capture_output=True, check=False)
    if trial.returncode:
        pytest.skip(f"mounts are not allowed here: {trial.stderr.decode().strip()}")
    return prefix


READ_ONLY = """
def after_step_4():
    subprocess.run(['mount', '--bind', run, run], check=True)
    subprocess.run(['mount', '-o', 'remount,bind,ro', run], check=True)
"""


FULL = """
def after_step_4():
    with open(run + "/../filler", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)): pass
        except OSError: pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (FULL, "No space left on device"),
        (READ_ONLY, "Read-only file system"),
    ],
)
def test_a_disk_that_fails_during_the_run(mounting, tiny_config, tmp_path, assert_goes_on, lines, fault):
    """The checkpoint of the best evaluation, at step 3, is the last."""
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    mounted = 'mount -t tmpfs -o size=8m tmpfs "$1" && shift && "${@:2}"; code=$?; rm -f "${@: -1}/../filler"; '
    script = f'{mounted} cp -r "${{@: -1}}" "$1"; exit $code'
    command = changed(lines, "--config", tiny_config, run=disk / "run")
    error = error_of([*mounting, "bash", "-c", script, "bash", str(disk), str(copy), *command])
    assert error.startswith(f"{disk}/run/{LAST}: cannot be written (")
    assert fault in error
    assert sorted(path.name for path in (copy / "checkpoints").iterdir()) == ["best.safetensors", "last.safetensors"]
    assert read_checkpoint(copy / LAST).progress["step"] == 3
    assert_goes_on(copy)
