"""What happens to a run from outside: kills, signals, disks and folders that fail during it."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import charlm.training.folder
from charlm.checkpoint import read_checkpoint
from charlm.training.step import Trainer
from tests.conftest import ROOT, Result
from tests.runs import assert_same_checkpoint, contents, untimed

pytestmark = pytest.mark.usefixtures("kernels")

# charlm, changed by the lines between: `after_step_4` is called where a test has defined it.
BEFORE = """
import os, shutil, signal, subprocess, sys, time
from pathlib import Path
import charlm.checkpoint, charlm.training.folder, charlm.training.loop
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


def ended(command: list[str]) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def error_of(command: list[str]) -> str:
    """The one line that a command failed with."""
    done = ended(command)
    return last_error(Result(done.returncode, done.stdout, done.stderr))


def last_error(result: Result) -> str:
    assert (result.code, result.out) == (1, ""), result
    (line,) = (line for line in result.err.splitlines() if line.startswith("error: "))
    assert result.err.endswith(f"{line}\n")
    return line.removeprefix("error: ")


@pytest.fixture
def assert_goes_on(cli: Callable[..., Result], tiny_config: Path) -> Callable[..., None]:
    """Resumes a run and compares it with one that nothing happened to."""

    def goes_on(run: Path, *overrides: str) -> None:
        whole = run.with_name("whole")
        sets = [word for override in overrides for word in ("--set", override)]
        for words in (["--config", tiny_config, *sets, "--run-dir", whole], ["--resume", "--run-dir", run]):
            assert cli("train", *words).code == 0
        assert_same_checkpoint(whole / "checkpoints/last.safetensors", run / "checkpoints/last.safetensors")
        assert untimed(whole) == untimed(run)
        assert not [*run.rglob("*.tmp")]

    return goes_on


@pytest.fixture
def after_step_4(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Lets something happen in this process after a run's fourth update."""

    def arrange(happen: Callable[[], object]) -> None:
        update = Trainer.update

        def updated(trainer: Trainer) -> None:
            update(trainer)
            if trainer.state.step == 4:
                monkeypatch.setattr(Trainer, "update", update)
                happen()

        monkeypatch.setattr(Trainer, "update", updated)

    return arrange


# Each waits in its stage for the first Ctrl-C, and there or while saving for the second, which it asks for.
SIGNALLED = """
def ask(which):
    print(which, flush=True)

def take_first():
    ask("first")
    until_s = time.monotonic() + 30
    while signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        assert time.monotonic() < until_s
        time.sleep(0.01)

def take_second():
    ask("second")
    while True:
        time.sleep(0.01)
"""
STAGES = {
    "step": "def after_step_4(): take_first(); take_second()",
    "saving": """
def flush_half(descriptor):
    os.ftruncate(descriptor, 1000)
    take_second()

def after_step_4():
    take_first()
    os.fsync = flush_half
""",
    "closing evaluation": """
def evaluate(*_, **options):
    take_first()
    take_second()

charlm.training.loop.evaluate = evaluate
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_second_ctrl_c_leaves_at_once_without_harm(tmp_path, tiny_config, assert_goes_on, stage):
    run, rare = tmp_path / "run", "train.eval_every=0"
    command = changed(SIGNALLED + STAGES[stage], "--config", tiny_config, "--set", rare, run=run)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        for which in ("first", "second"):
            assert process.stdout.readline() == f"{which}\n"
            assert process.poll() is None
            process.send_signal(2)
        try:
            process.wait(timeout=30)
        finally:
            process.kill()
        err = process.stderr.read()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "stopped" not in err
    last = run / "checkpoints/last.safetensors"
    assert [*last.parent.iterdir()] == [last]
    assert read_checkpoint(last).progress["step"] == (6 if stage == "closing evaluation" else 0)
    assert_goes_on(run, rare)


@pytest.mark.parametrize("event", ["renamed", "removed", "replaced", "made again"])
def test_a_folder_that_goes_during_the_run_is_not_made_again(
    tmp_path, cli, tiny_config, after_step_4, assert_goes_on, event
):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"

    def happen():
        if event in ("renamed", "replaced"):
            run.rename(elsewhere)
        else:
            shutil.rmtree(run)
        if event in ("replaced", "made again"):
            run.mkdir()

    after_step_4(happen)
    assert last_error(cli("train", "--config", tiny_config, "--run-dir", run)) == (
        f"{run}: removed or renamed during the run; allowed: a folder that stays until the run ends; "
        "start a new run, or --resume the folder at its new place"
    )
    assert not run.exists() or (event in ("replaced", "made again") and not [*run.iterdir()])
    if event in ("renamed", "replaced"):
        assert_goes_on(elsewhere)


def test_a_folder_that_goes_during_saving_is_not_made_again(tmp_path, cli, tiny_config, after_step_4, monkeypatch):
    """After the last look at it."""
    run = tmp_path / "run"
    save_checkpoint = charlm.training.folder.save_checkpoint

    def save(*arguments):
        shutil.rmtree(run)
        save_checkpoint(*arguments)

    after_step_4(lambda: monkeypatch.setattr(charlm.training.folder, "save_checkpoint", save))
    error = last_error(cli("train", "--config", tiny_config, "--run-dir", run))
    assert error.startswith(f"{run}/checkpoints/last.safetensors: cannot be written ([Errno 2] No such file")
    assert not run.exists()


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
        for file in ("step-00000001.safetensors", "step-00000009.safetensors", ".x.charlm.tmp", ".tmpabcdef"):
            (target / file).write_text("mine")
    else:
        planted.unlink(missing_ok=True)
        target.write_text('{"step": 1}\n{"step": 99}\n')
    planted.symlink_to(target)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    result = cli("train", "--resume", "--set", "train.max_steps=9", "--set", "train.save_every=1", "--run-dir", run)
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before
    if name == ".config.yaml.tmp":
        assert result.code == 0
    elif name == "config.yaml":
        assert (result.code, planted.is_symlink()) == (0, False)
    else:
        assert last_error(result) == (
            f"{planted}: found a link, through which charlm does not write; allowed: what charlm wrote itself; "
            "remove the link"
        )


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_that_is_no_file_is_one_line(tmp_path, cli, make):
    make(tmp_path / ".lock")
    (tmp_path / "text.txt").write_text("abc" * 200)
    result = cli("train", "--config", "lstm", tmp_path / "text.txt", "--run-dir", tmp_path)
    found = "found no regular file; allowed: a file that charlm wrote; remove this"
    assert last_error(result) == f"{tmp_path}/.lock: {found}"


@pytest.mark.slow
def test_a_terminal_that_takes_nothing_more_costs_nothing(tmp_path, cli, tiny_config):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "charlm", "train", "--config", str(tiny_config), "--run-dir", str(run)]
    with Path("/dev/full").open("w") as full:
        subprocess.run(command, cwd=ROOT, stderr=full, check=False, timeout=120)
    assert read_checkpoint(run / "checkpoints/last.safetensors").progress["step"] == 6
    whole = run.with_name("whole")
    assert cli("train", "--config", tiny_config, "--run-dir", whole).code == 0
    assert_same_checkpoint(whole / "checkpoints/last.safetensors", run / "checkpoints/last.safetensors")
    assert untimed(whole) == untimed(run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # a background job's, and nohup's
def test_a_signal_that_the_shell_has_ignored_is_ignored(tmp_path, cli, tiny_config, after_step_4, number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        after_step_4(lambda: os.kill(os.getpid(), number))
        assert cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run").code == 0
    finally:
        signal.signal(number, before)
    assert read_checkpoint(tmp_path / "run/checkpoints/last.safetensors").progress["step"] == 6


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


@pytest.fixture(params=["mount", "chmod"])
def read_only(request: pytest.FixtureRequest) -> tuple[list[str], str]:
    """The beginning of a command, and lines for `changed` that define `make_read_only()` of the run's folder."""
    if request.param == "mount":
        make = (
            "subprocess.run(['mount', '--bind', run, run], check=True)\n"
            "    subprocess.run(['mount', '-o', 'remount,bind,ro', run], check=True)\n"
        )
        return request.getfixturevalue("mounting"), f"def make_read_only():\n    {make}"
    if os.geteuid() == 0:
        pytest.skip("root writes where permissions forbid it")
    return [], "def make_read_only():\n    for path in (run, run + '/checkpoints'): os.chmod(path, 0o555)\n"


@pytest.fixture
def run(tmp_path: Path):
    """A run's folder, whatever its permissions are in the end."""
    yield tmp_path / "run"
    for folder in (tmp_path / "run", tmp_path / "run/checkpoints"):
        if folder.exists():
            folder.chmod(0o755)


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_a_read_only_folder(read_only, run, tiny_config, trained_run, resumed):
    prefix, lines = read_only
    if resumed:
        shutil.copytree(trained_run, run)
    else:
        (run / "checkpoints").mkdir(parents=True)
    before = contents(run)
    words = ["--resume"] if resumed else ["--config", tiny_config]
    error = error_of([*prefix, *changed(f"{lines}make_read_only()", *words, run=run)])
    fault = "Read-only file system" if prefix else "Permission denied"
    assert error == f"{run}: {fault}; allowed: a folder that can be written; see --run-dir"
    assert contents(run) == before


@pytest.mark.slow
def test_a_folder_that_becomes_read_only_during_the_run(read_only, run, tiny_config, assert_goes_on):
    """The checkpoint of the best evaluation, at step 3, is the last."""
    prefix, lines = read_only
    error = error_of([*prefix, *changed(f"{lines}after_step_4 = make_read_only", "--config", tiny_config, run=run)])
    last = run / "checkpoints/last.safetensors"
    assert error.startswith(f"{last}: cannot be written (")
    assert error.endswith("; earlier checkpoints are whole; free space or check permissions")
    assert ("Read-only file system" if prefix else "Permission denied") in error
    assert read_checkpoint(last).progress["step"] == 3
    for folder in (run, last.parent):
        folder.chmod(0o755)
    assert_goes_on(run)


def test_a_disk_that_becomes_full_during_the_run(mounting, tiny_config, tmp_path, assert_goes_on):
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    mounted = 'mount -t tmpfs -o size=8m tmpfs "$1" && shift && "${@:2}"; code=$?; rm -f "${@: -1}/../filler"; '
    script = f'{mounted} cp -r "${{@: -1}}" "$1"; exit $code'
    fill = """
def after_step_4():
    with open(run + "/../filler", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)): pass
        except OSError: pass
"""
    command = changed(fill, "--config", tiny_config, run=disk / "run")
    error = error_of([*mounting, "bash", "-c", script, "bash", str(disk), str(kept), *command])
    assert error.startswith(f"{disk}/run/checkpoints/last.safetensors: cannot be written (")
    assert "No space left on device" in error
    assert error.endswith("; earlier checkpoints are whole; free space or check permissions")
    last = kept / "checkpoints/last.safetensors"
    assert read_checkpoint(last).progress["step"] == 3
    assert sorted(path.name for path in last.parent.iterdir()) == ["best.safetensors", "last.safetensors"]
    assert_goes_on(kept)
