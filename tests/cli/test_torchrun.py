"""`torchrun … -m charlm train`, with real processes."""

import os
import subprocess
import sys

import pytest

from charlm.checkpoint import read_checkpoint
from tests.conftest import ROOT, TINY
from tests.processes import environments
from tests.runs import assert_same_checkpoint, untimed
from tests.text import words_text

pytestmark = pytest.mark.slow

SETTINGS = ["--set", "train.max_steps=8", "--set", "train.save_every=3"]
PROGRAM = """
import os, signal, time
from charlm.cli import main
from charlm.training.step import Trainer
rank, restarts = os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT']
update = Trainer.update
def disturbed(trainer):
    update(trainer)
    {disturbance}
Trainer.update = disturbed
main()
"""
KILLED = "if trainer.state.step == 5 and (rank, restarts) == ('1', '0'): os.kill(os.getpid(), signal.SIGKILL)"
STOPPED = "if trainer.state.step == 5 and rank == '0': os.kill(os.getppid(), signal.SIGTERM), time.sleep(2)"


@pytest.fixture
def run_processes(tmp_path):
    (tmp_path / "text.txt").write_text(words_text(3000))
    (tmp_path / "tiny.yaml").write_text(TINY.format(source=tmp_path / "text.txt"))

    def run(command, environment=()):
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | dict(environment)
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    return run


@pytest.fixture
def torchrun(run_processes, tmp_path, kernels):
    """Run `charlm train --run-dir …` in two processes that something may disturb after an update."""

    def run(name, disturbance="pass", restarts=0):
        (tmp_path / "program.py").write_text(PROGRAM.format(disturbance=disturbance))
        launcher = ["--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}", "program.py"]
        train = ["train", "--config", "tiny.yaml", "--run-dir", str(tmp_path / name), *SETTINGS]
        return run_processes([sys.executable, "-m", "torch.distributed.run", *launcher, *train])

    return run


def test_a_killed_process_ends_all_with_one_line_and_costs_no_bit_with_restarts(torchrun, tmp_path):
    assert torchrun("whole").returncode == 0
    done = torchrun("killed", disturbance=KILLED, restarts=1)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert line.startswith("error: processes: another one ended or did not answer (")
    assert line.endswith(" s for each other (CHARLM_TIMEOUT_S); see its own message, and go on with --resume")
    assert f"resume   {tmp_path}/killed/checkpoints/last.safetensors, update 3\n" in done.stderr
    for name in ("last", "best"):
        assert_same_checkpoint(*(tmp_path / f"{run}/checkpoints/{name}.safetensors" for run in ("whole", "killed")))
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "killed")


def test_a_signal_to_torchrun_stops_after_a_checkpoint(torchrun, tmp_path):
    done = torchrun("stopped", disturbance=STOPPED)
    assert done.returncode != 0
    assert read_checkpoint(tmp_path / "stopped/checkpoints/last.safetensors").progress["step"] == 5
    assert "stopped  SIGTERM at update 5; resume with: " in done.stderr


def test_processes_that_never_come(run_processes):
    command = [sys.executable, "-m", "charlm", "train", "--config", "tiny.yaml"]
    done = run_processes(command, environments(2, timeout_s=2)[0])
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: processes: not all 2 have come (")
    assert line.endswith("2 s for each other (CHARLM_TIMEOUT_S); start all of them, and check their --rdzv-endpoint")
