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

SETTINGS = ["train.max_steps=20", "train.save_every=5", "train.log_every=5"]


@pytest.fixture
def torchrun(tmp_path, kernels):
    """Run `charlm train --run-dir …` in two processes, after a program that may disturb them."""
    (tmp_path / "text.txt").write_text(words_text(3000))
    (tmp_path / "tiny.yaml").write_text(TINY.format(source=tmp_path / "text.txt"))
    program = tmp_path / "program.py"

    def run(name, disturbance="", options=(), extra=()):
        program.write_text(
            "import os, signal, time\nfrom charlm.cli import main\nfrom charlm.training.step import Trainer\n"
            "rank, restarts = os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT']\n"
            "update = Trainer.update\n"
            "def disturbed(trainer):\n"
            "    update(trainer)\n"
            f"    if trainer.state.step == 12: {disturbance or 'pass'}\n"
            "Trainer.update = disturbed\n"
            "main()\n"
        )
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *options]
        command += [str(program), "train", "--config", str(tmp_path / "tiny.yaml"), "--run-dir", str(tmp_path / name)]
        command += [word for setting in SETTINGS for word in ("--set", setting)]
        return subprocess.run(
            [*command, *extra],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    return run


@pytest.mark.parametrize("unit", ["text", "line"])
def test_a_killed_process_costs_no_bit_with_restarts(torchrun, tmp_path, unit):
    extra = ["--set", f"data.unit={unit}"]
    assert torchrun("whole", extra=extra).returncode == 0
    kill = "rank == '1' and restarts == '0' and os.kill(os.getpid(), signal.SIGKILL)"
    done = torchrun("killed", kill, ["--max-restarts=1"], extra)
    assert done.returncode == 0, done.stderr
    assert "resume   " in done.stderr
    for name in ("last", "best"):
        assert_same_checkpoint(*(tmp_path / f"{run}/checkpoints/{name}.safetensors" for run in ("whole", "killed")))
    assert untimed(tmp_path / "whole") == untimed(tmp_path / "killed")
    again = torchrun("killed")
    assert again.returncode == 1
    assert f"error: {tmp_path}/killed: already holds a run; allowed: --resume" in again.stderr
    assert again.stderr.count("error: ") == 1
    assert torchrun("killed", extra=["--resume", *extra, "--set", "train.max_steps=25"]).returncode == 0
    assert read_checkpoint(tmp_path / "killed/checkpoints/last.safetensors").progress["step"] == 25


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_to_torchrun_stops_after_a_checkpoint(torchrun, tmp_path, name):
    done = torchrun("stopped", f"rank == '0' and (os.kill(os.getppid(), signal.{name}), time.sleep(2))")
    assert done.returncode != 0
    step = read_checkpoint(tmp_path / "stopped/checkpoints/last.safetensors").progress["step"]
    assert step == 12
    assert f"stopped  {name} at step 12; resume with: " in done.stderr


def test_a_killed_process_without_restarts_ends_the_run_with_one_line(torchrun, tmp_path):
    done = torchrun("run", "rank == '1' and os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert line.startswith("error: processes: another one ended or did not answer (")
    assert read_checkpoint(tmp_path / "run/checkpoints/last.safetensors").progress["step"] == 10


@pytest.mark.usefixtures("torchrun")
def test_processes_that_never_come(tmp_path):
    environment = environments(2, timeout_s=2)[0]
    command = [sys.executable, "-m", "charlm", "train", "--config", str(tmp_path / "tiny.yaml")]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | environment | {"PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: processes: not all 2 have come (")
    assert line.endswith("2 s for each other (CHARLM_TIMEOUT_S); start all of them, and check their --rdzv-endpoint")
