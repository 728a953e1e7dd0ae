"""`torchrun … -m charlm train`, with real processes."""

import os
import subprocess
import sys

import pytest
import torch

from charlm.checkpoint import read_checkpoint
from tests.conftest import ROOT, TINY
from tests.text import words_text

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
        time.sleep(2)
Trainer.update = disturbed
main()
"""


def test_a_killed_process_costs_nothing_with_restarts_and_a_signal_stops_all_after_a_checkpoint(cli, tmp_path):
    """Both processes start again from the last checkpoint, and torchrun passes its signal on to both."""
    (tmp_path / "text.txt").write_text(words_text(3000))
    (tmp_path / "tiny.yaml").write_text(TINY.format(source=tmp_path / "text.txt"))
    (tmp_path / "program.py").write_text(PROGRAM)
    words = ["train", "--config", tmp_path / "tiny.yaml", "--set", "train.save_every=3", "--set"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1", "program.py"]
    done = subprocess.run(
        [sys.executable, *launcher, *map(str, words), "train.max_steps=99", "--run-dir", str(tmp_path / "run")],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode != 0
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert line.startswith("error: processes: another one ended or did not answer (")
    assert line.endswith(" s for each other (CHARLM_TIMEOUT_S); see its own message, and go on with --resume")
    assert f"resume   {tmp_path}/run/checkpoints/last.safetensors, update 3\n" in done.stderr
    assert "stopped  SIGTERM at update 7; resume with: " in done.stderr
    assert cli(*words, "train.max_steps=7", "--run-dir", tmp_path / "one").code == 0
    found, wanted = (read_checkpoint(tmp_path / run / "checkpoints/last.safetensors") for run in ("run", "one"))
    assert found.progress["step"] == wanted.progress["step"] == 7
    for name, weight in wanted.weights.items():
        torch.testing.assert_close(found.weights[name], weight, rtol=1e-3, atol=1e-5)
