"""Processes on two machines: torchrun twice, in two folders of this one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from charlm.checkpoint import read_checkpoint
from tests.conftest import ROOT, TINY
from tests.text import words_text

pytestmark = pytest.mark.rare

# The second process is killed; the first is slow to notice, so their counts of restarts differ.
PROGRAM = """
import os, time
from charlm.cli import main
from charlm.training.step import Trainer

update = Trainer.update

def disturbed(trainer):
    update(trainer)
    if trainer.state.step == 4 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(4) if os.environ["RANK"] == "0" else os.kill(os.getpid(), 9)

Trainer.update = disturbed
main()
"""


def launched(home: Path, is_first: bool) -> "subprocess.Popen[str]":
    """torchrun in a folder, which holds the text. Only the first gets the config and writes the run."""
    home.mkdir()
    (home / "text.txt").write_text(words_text(3000))
    (home / "program.py").write_text(PROGRAM)
    if is_first:
        (home / "tiny.yaml").write_text(TINY.format(source="text.txt"))
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=2"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:29517", f"--rdzv-conf=is_host={int(is_first)}"]
    command += ["--local-addr=127.0.0.1", "program.py", "train", "--config", "tiny.yaml", "--run-dir", "run"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "CHARLM_TIMEOUT_S": "60"}
    return subprocess.Popen(command, cwd=home, env=environment, stderr=subprocess.PIPE, text=True)


def test_two_hosts_train_as_one_process_does_although_one_is_killed(tmp_path, cli):
    first, second = tmp_path / "first", tmp_path / "second"
    processes = [launched(home, home == first) for home in (first, second)]
    printed = [process.communicate(timeout=180)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    assert not (second / "run").exists()
    assert ["done     max_steps" in text for text in printed] == [True, False]
    assert "resume   " in printed[0]
    (tmp_path / "tiny.yaml").write_text(TINY.format(source=first / "text.txt"))
    assert cli("train", "--config", tmp_path / "tiny.yaml", "--run-dir", tmp_path / "run").code == 0
    found, wanted = (read_checkpoint(home / "run/checkpoints/last.safetensors") for home in (first, tmp_path))
    assert found.progress["step"] == wanted.progress["step"] == 6
    for name, weight in wanted.weights.items():
        torch.testing.assert_close(found.weights[name], weight, rtol=1e-3, atol=1e-5)
