"""charlm as a process: pipes, encodings, unexpected errors, and no network."""

import os
import socket
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("setting", "error"),
    [
        (b"\xff\x1b\xc2\x9b\xe2\x80\xae", rb"\xff\x1b\x9b\u202e: found no KEY=VALUE; "),
        (b"seed=-1", rb"seed=-1: seed: found -1; allowed: an integer \u2265 0 and < 9,223,"),
    ],
)
def test_errors_need_no_utf8_terminal_and_arguments_are_bytes(tmp_path, setting, error):
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(ROOT)}
    words = [*COMMAND[:-1], "show", "lstm", "--set", setting]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"error: --set " + error)


def test_a_closed_stdin_holds_nothing(cli, trained_run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    result = cli("score", trained_run, "-")
    assert (result.code, result.out, result.err) == (0, "", "")
    sys.stdin.close()


def test_an_unexpected_error_keeps_its_traceback(cli, monkeypatch):
    monkeypatch.setattr("charlm.config.dump_config", mock.Mock(side_effect=RuntimeError("a bug of charlm")))
    with pytest.raises(RuntimeError, match="a bug of charlm"):
        cli("config", "show", "lstm")


INTERRUPTED = """
import os, signal, sys
from charlm.__main__ import main

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.argv = ["charlm", "--version"]
sys.meta_path.insert(0, Finder())
main()
"""


STOPPED = "stopped  SIGINT: ended at once\n"


def test_ctrl_c_while_modules_are_loaded_is_one_line():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, STOPPED)


def test_ctrl_c_before_a_training_is_one_line(cli, tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr("charlm.training.start.prepare", mock.Mock(side_effect=KeyboardInterrupt))
    result = cli("train", "--config", tiny_config, "--run-dir", tmp_path / "run")
    assert (result.code, result.err) == (130, STOPPED)
    assert not (tmp_path / "run").exists()


def test_nothing_but_a_download_asks_for_the_network(cli, tiny_config, tmp_path, monkeypatch):
    asked = mock.Mock(side_effect=OSError)
    monkeypatch.setattr(socket, "getaddrinfo", asked)
    run = tmp_path / "run"
    assert cli("train", "--config", tiny_config, "--run-dir", run).code == 0
    for words in (["eval", run, "--novelty"], ["data", "list"]):
        assert cli(*words).code == 0
    assert not asked.called
    monkeypatch.chdir(tmp_path)
    assert cli("data", "fetch", "tinyshakespeare").code == 1
    assert asked.called
