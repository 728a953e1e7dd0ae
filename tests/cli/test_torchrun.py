"""`torchrun … -m charlm train`, with real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

PROGRAM = """
import os, signal, time
from charlm.cli import main
from charlm.training.step import Trainer
rank, restarts = os.environ['RANK'], os.environ['TORCHELASTIC_RESTART_COUNT']
update = Trainer.update
def disturbed(trainer):
    update(trainer)
    if trainer.state.step == 5 and (rank, restarts) == ('1', '0'):
        os.kill(os.getpid(), signal.SIGKILL)
    if trainer.state.step == 7 and rank == '0':
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(2)  # until torchrun has passed it on
Trainer.update = disturbed
main()
"""


def test_a_killed_process_costs_nothing_with_restarts_and_a_signal_stops_all(tmp_path, tiny_config, monkeypatch):
    """Both processes start again from the last checkpoint; torchrun passes its signal on to both."""
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    words = ["train", "--config", tiny_config, "--json", "--set", "train.save_every=3", "--set", "train.max_steps=99"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [*torchrun, "program.py", *words, "--run-dir", "run"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert line.startswith("error: processes: another one ended or did not answer (")
    assert line.endswith(" s for each other (CHARLM_TIMEOUT_S); see its own message, and go on with --resume")
    assert "/run/checkpoints/last.safetensors, update 3\n" in done.stderr
    assert "stopped  SIGTERM at update 7; resume with: " in done.stderr
    assert json.loads(done.stdout)["step"] == 7  # one of them prints it
