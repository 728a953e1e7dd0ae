"""charlm as a process: pipes, encodings, unexpected errors, and no network."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest

from tests.conftest import ROOT

COMMAND = [sys.executable, "-m", "charlm", "config", "schema"]


def test_a_reader_that_has_gone_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        done = subprocess.run(COMMAND, stdout=gone, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_no_room_for_the_output_is_one_line():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(COMMAND, stdout=full, stderr=subprocess.PIPE, text=True)
    error = "error: stdout: No space left on device; allowed: a place with room for the output\n"
    assert (done.returncode, done.stderr) == (1, error)


def test_errors_need_no_utf8_terminal_and_arguments_are_bytes(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(ROOT)}
    words = ["show", "lstm", "--set", "seed=-1", b"--set", b"\xff\x1b\xc2\x9b\xe2\x80\xae"]
    done = subprocess.run([*COMMAND[:-1], *words], cwd=tmp_path, env=environment, capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")
    odd, number = done.stderr.splitlines()
    assert odd.startswith(rb"error: --set \xff\x1b\x9b\u202e: found no KEY=VALUE; ")
    assert number.startswith(rb"error: --set seed=-1: seed: found -1; allowed: an integer \u2265 0 and < 9,223,")


def test_a_closed_stdin_holds_nothing(cli, trained_run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    result = cli("score", trained_run, "-")
    assert (result.code, result.out, result.err) == (0, "", "")
    sys.stdin.close()


def test_an_unexpected_error_keeps_its_traceback(cli, monkeypatch):
    monkeypatch.setattr("charlm.config.dump_config", mock.Mock(side_effect=RuntimeError("a bug of charlm")))
    with pytest.raises(RuntimeError, match="a bug of charlm"):
        cli("config", "show", "lstm")


@pytest.mark.parametrize("refusal", [RuntimeError("can't start new thread"), BlockingIOError(11, "try again")])
def test_a_system_that_starts_no_thread_or_process_is_one_line(cli, trained_run, threads, monkeypatch, refusal):
    threads(2)
    monkeypatch.setattr(threading.Thread, "start", mock.Mock(side_effect=refusal))
    result = cli("sample", trained_run, "--device", "cpu")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: processes: the system starts no further thread or process; allowed: ")


INTERRUPTED = """
import atexit, os, signal, sys
from charlm.__main__ import main

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            interrupt()

sys.argv = ["charlm", "--version"]
{when}
main()
"""
LOADING, AFTER = "sys.meta_path.insert(0, Finder())", "atexit.register(interrupt)"


@pytest.mark.parametrize(("when", "ignored", "code"), [(LOADING, False, 130), (AFTER, False, 130), (LOADING, True, 0)])
def test_ctrl_c_while_modules_are_loaded_and_after_the_command_needs_no_traceback(when, ignored, code):
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
    done = subprocess.run([sys.executable, "-c", INTERRUPTED.format(when=when)], capture_output=True, text=True)
    signal.signal(signal.SIGINT, before)
    assert (done.returncode, done.stderr) == (code, "")


class Asked(Exception):
    """The network was asked for."""


def test_nothing_but_a_download_asks_for_the_network(cli, tiny_config, tmp_path, monkeypatch):
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, mock.Mock(side_effect=Asked))
    run = tmp_path / "run"
    assert cli("train", "--config", tiny_config, "--run-dir", run).code == 0
    for words in (["sample", run, "--novelty"], ["eval", run, "--dynamic"], ["data", "list"]):
        assert cli(*words).code == 0
    with pytest.raises(Asked):
        cli("data", "fetch", "tinyshakespeare", "--data-dir", tmp_path)
