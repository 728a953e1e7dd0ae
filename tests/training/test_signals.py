"""Ctrl-C, SIGTERM and SIGHUP."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

import charlm.inference.evaluation
from charlm.checkpoint import read_checkpoint
from charlm.config import dump_config
from charlm.inference.sampling import SampleText
from charlm.training.start import resume_run, start_run
from tests.runs import assert_same_checkpoint, interrupted_after, untimed


@pytest.fixture
def endless(tmp_path, config_of):
    """The config of a run that goes on until it is stopped."""
    file = tmp_path / "c.yaml"
    file.write_text(dump_config(config_of(train={"max_steps": 10**6, "log_every": 1})))
    return file


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_a_signal_stops_the_run_after_a_checkpoint(tmp_path, cli, endless, number, code):
    run = tmp_path / "run"
    with interrupted_after(5, number):
        result = cli("train", "--config", endless, "--run-dir", run)
    assert (result.code, result.out) == (code, "")
    assert result.err.splitlines()[-1] == (
        f"stopped  {number.name} at update 5; resume with: charlm train --resume --run-dir {run}"
    )
    assert read_checkpoint(run / "checkpoints/last.safetensors").progress["step"] == 5


@pytest.mark.usefixtures("kernels")
def test_a_terminal_that_is_closed_stops_the_run_after_a_checkpoint(tmp_path, endless):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "charlm", "train", "--config", str(endless), "--run-dir", str(run), "--json"]
    terminal, side = pty.openpty()
    with subprocess.Popen(
        # A process of its own session takes the first terminal that it opens as its own.
        ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>err', os.ttyname(side), *command],
        cwd=tmp_path,
        start_new_session=True,
    ) as process:
        os.close(side)
        deadline = time.monotonic() + 60
        while not (run / "metrics.jsonl").exists() or (run / "metrics.jsonl").read_text().count("\n") < 3:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        os.close(terminal)
        assert process.wait(60) == 129
    assert (tmp_path / "err").read_text().splitlines()[-1].startswith("stopped  SIGHUP at update ")
    assert read_checkpoint(run / "checkpoints/last.safetensors").progress["step"] >= 3


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


WINDOW = charlm.inference.evaluation, "_until_end"  # is called once a window
CHARACTER = SampleText, "append"


@pytest.mark.parametrize(
    ("within", "train", "data", "stops"),
    [
        (WINDOW, {}, {}, [(2, 4), (3, 4), (9, 8)]),  # the second time after resuming, and in the next evaluation
        (WINDOW, {}, {"unit": "line"}, [(2, 4)]),
        (WINDOW, {"eval_every": 0, "max_steps": 11}, {}, [(2, 11)]),  # the final evaluation
        (CHARACTER, {"sample_every": 4}, {}, [(20, 0), (320, 4), (20, 4), (320, 8)]),
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


def test_a_sample_that_was_left_unfinished_is_drawn_once(tmp_path, config_of, signal_at):
    """Also if the resumed session draws it and is then killed."""
    config = config_of(train={"sample_every": 4})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    signal_at(*CHARACTER, 320)
    assert start_run(config, parts).step == 4
    first, second, *_ = (whole / "samples.jsonl").read_text().splitlines(keepends=True)
    assert (parts / "samples.jsonl").read_text() == first
    (parts / "samples.jsonl").write_text(first + second)
    resume_run(parts)
    assert (whole / "samples.jsonl").read_text() == (parts / "samples.jsonl").read_text()
