"""Ctrl-C, SIGTERM and the other signals that stop a run."""

import signal
import subprocess
import sys

import pytest

from charlm.checkpoint import read_checkpoint
from charlm.inference.reader import Reader
from charlm.inference.sampling import SampleText
from charlm.training.start import resume_run, start_run
from tests.runs import interrupted_after
from tests.training.conftest import assert_same_run

CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129, "SIGQUIT": 131, "SIGUSR1": 138, "SIGUSR2": 140, "SIGXCPU": 152}


@pytest.mark.parametrize(("number", "code"), [(signal.Signals[name], code) for name, code in CODES.items()])
def test_a_signal_stops_the_run_after_a_checkpoint(tmp_path, cli, tiny_config, number, code):
    run = tmp_path / "run"
    with interrupted_after(5, number):
        result = cli("train", "--config", tiny_config, "--run-dir", run)
    assert (result.code, result.out) == (code, "")
    assert result.err.splitlines()[-1] == (
        f"stopped  {number.name} at update 5; resume with: charlm train --resume --run-dir {run}"
    )
    assert read_checkpoint(run / "checkpoints/last.safetensors").progress["step"] == 5


@pytest.mark.parametrize("name", ["SIGHUP", "SIGXCPU"])
def test_the_kernel_sends_some_signals_again(tmp_path, config_of, name):
    with interrupted_after(5, signal.Signals[name]), interrupted_after(5, signal.Signals[name]):
        outcome = start_run(config_of(), tmp_path / "run")
    assert (outcome.reason, outcome.step) == (name, 5)


AT_ONCE = """
import signal, threading
from charlm.training.signals import catch_signals

both = {signal.SIGINT, signal.SIGTERM}
with catch_signals(patient=False):
    signal.pthread_sigmask(signal.SIG_BLOCK, both)
    for number in both:
        signal.pthread_kill(threading.get_ident(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
"""


def test_the_second_of_two_signals_at_once_ends_the_process():
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, "")


@pytest.fixture
def signal_at(monkeypatch):
    """Sends this process a signal at the n-th call of a method; returns the list of its calls."""

    def arrange(owner, name, number):
        method, calls = getattr(owner, name), []

        def called(*arguments, **options):
            calls.append(name)
            if len(calls) == number:
                signal.raise_signal(signal.SIGTERM)
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, called)
        return calls

    return arrange


WINDOW = Reader, "nats"  # is called once a window
CHARACTER = SampleText, "append"


@pytest.mark.parametrize(
    ("within", "train", "stops"),
    [
        (WINDOW, {"sample_every": 0}, [(2, 4), (3, 4), (9, 8)]),  # again after resuming, and in the next evaluation
        (WINDOW, {"sample_every": 0, "eval_every": 0, "max_steps": 11}, [(2, 11)]),  # the final evaluation
        (CHARACTER, {"sample_every": 4}, [(20, 0), (320, 4), (20, 4), (320, 8)]),
    ],
)
def test_a_signal_is_answered_at_once_and_costs_no_bit(tmp_path, config_of, signal_at, within, train, stops):
    config = config_of(train={"ema": 0.9, **train})
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start_run(config, whole)
    for session, (number, step) in enumerate(stops):
        calls = signal_at(*within, number)
        outcome = resume_run(parts) if session else start_run(config, parts)
        assert (outcome.reason, outcome.step) == ("SIGTERM", step)
        assert len(calls) == number
    assert resume_run(parts).reason == "max_steps"
    assert_same_run(whole, parts)


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
