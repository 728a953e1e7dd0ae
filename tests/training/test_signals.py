"""Ctrl-C, SIGTERM and SIGHUP."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import charlm.inference.evaluation
from charlm.checkpoint import read_checkpoint
from charlm.config import dump_config
from charlm.inference.sampling import SampleText
from charlm.training.start import resume_run, start_run
from tests.runs import assert_same_checkpoint, interrupted_after, untimed


@pytest.fixture
def command(tmp_path, config_of):
    """The command of a run that goes on until it is stopped."""
    file = tmp_path / "c.yaml"
    file.write_text(dump_config(config_of(train={"max_steps": 10**6, "log_every": 1})))
    return [sys.executable, "-m", "charlm", "train", "--config", str(file), "--run-dir", str(tmp_path / "run")]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_as_a_user_sends_them(tmp_path, command, number, code):
    run = tmp_path / "run"

    def as_in_a_terminal():  # a shell's background jobs have Ctrl-C ignored
        signal.signal(number, signal.SIG_DFL)

    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, preexec_fn=as_in_a_terminal) as process:
        wait_for_rows(run, process)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    assert "Traceback" not in err
    step = read_checkpoint(run / "checkpoints/last.safetensors").progress["step"]
    assert err.splitlines()[-1] == (
        f"stopped  {number.name} at step {step}; resume with: charlm train --resume --run-dir {run}"
    )


@pytest.mark.usefixtures("kernels")
def test_a_terminal_that_is_closed_stops_the_run_after_a_checkpoint(tmp_path, command):
    terminal, side = pty.openpty()
    with subprocess.Popen(
        # A process of its own session takes the first terminal that it opens as its own.
        ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>err', os.ttyname(side), *command, "--json"],
        cwd=tmp_path,
        start_new_session=True,
    ) as process:
        os.close(side)
        wait_for_rows(tmp_path / "run", process)
        os.close(terminal)
        assert process.wait(60) == 129
    assert (tmp_path / "err").read_text().splitlines()[-1].startswith("stopped  SIGHUP at step ")
    assert read_checkpoint(tmp_path / "run/checkpoints/last.safetensors").progress["step"] >= 3


def wait_for_rows(run: Path, process: "subprocess.Popen[bytes] | subprocess.Popen[str]"):
    deadline = time.monotonic() + 60
    while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_text().splitlines()) < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)


def test_the_kernel_and_the_shell_each_send_a_sighup(tmp_path, config_of):
    with interrupted_after(5, signal.SIGHUP), interrupted_after(5, signal.SIGHUP):
        outcome = start_run(config_of(), tmp_path / "run")
    assert (outcome.reason, outcome.step) == ("SIGHUP", 5)


@pytest.fixture
def signal_at(monkeypatch):
    """Sends this process a signal at the n-th call of a function; returns the list of its calls."""

    def arrange(where, name, number):
        function, calls = getattr(where, name), []

        def called(*arguments, **options):
            calls.append(name)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGTERM)
            return function(*arguments, **options)

        monkeypatch.setattr(where, name, called)
        return calls

    return arrange


WINDOW = charlm.inference.evaluation, "cross_entropy"  # is called once a window
CHARACTER = SampleText, "append"


@pytest.mark.parametrize(
    ("within", "train", "data", "stops"),
    [
        (WINDOW, {}, {}, [(2, 4), (3, 4), (9, 8)]),  # the second time after resuming, and in the next evaluation
        (WINDOW, {}, {"unit": "line"}, [(2, 4)]),
        (WINDOW, {"eval_every": 0, "max_steps": 11}, {}, [(2, 11)]),  # the final evaluation
        (CHARACTER, {"sample_every": 4}, {}, [(20, 4), (20, 4), (320, 8)]),
    ],
    ids=["evaluation", "line evaluation", "final evaluation", "sample"],
)
def test_a_signal_is_answered_at_once_and_costs_no_bit(tmp_path, config_of, signal_at, within, train, data, stops):
    config = config_of(train={"ema": 0.9, **train}, data=data)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    for session, (number, step) in enumerate(stops):
        calls = signal_at(*within, number)
        outcome = resume_run(parts) if session else start_run(config, parts)
        assert (outcome.reason, outcome.step) == ("SIGTERM", step)
        assert len(calls) == number
    assert resume_run(parts).reason == "max_steps"
    for path in (whole / "checkpoints").iterdir():
        assert_same_checkpoint(path, parts / "checkpoints" / path.name)
    assert untimed(whole) == untimed(parts)
    assert (whole / "samples.jsonl").read_text() == (parts / "samples.jsonl").read_text()
