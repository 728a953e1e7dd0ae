"""Ctrl-C and SIGTERM."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from charlm.checkpoint import read_checkpoint


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_as_a_user_sends_them(tmp_path, config_of, number, code):
    from charlm.config import dump_config

    file, run = tmp_path / "c.yaml", tmp_path / "run"
    file.write_text(dump_config(config_of(train={"max_steps": 10**6, "log_every": 1})))
    command = [sys.executable, "-m", "charlm", "train", "--config", str(file), "--run-dir", str(run)]

    def as_in_a_terminal():  # a shell's background jobs have Ctrl-C ignored
        signal.signal(number, signal.SIG_DFL)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, preexec_fn=as_in_a_terminal) as process:
        deadline = time.monotonic() + 60
        while not (run / "metrics.jsonl").exists() or len(rows_so_far(run)) < 3:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    assert "Traceback" not in err
    step = read_checkpoint(run / "checkpoints/last.safetensors").progress["step"]
    assert err.splitlines()[-1] == (
        f"stopped  {number.name} at step {step}; resume with: charlm train --resume --run-dir {run}"
    )


def rows_so_far(run: Path):
    return (run / "metrics.jsonl").read_text().splitlines()
