"""charlm as a process: pipes, encodings, unexpected errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import charlm


def test_a_reader_that_has_gone_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "charlm", "config", "schema"]
    with os.fdopen(writing, "wb") as gone:
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, "")


def test_module_is_the_command_and_errors_need_no_utf8_terminal(tmp_path):
    (tmp_path / "bad.yaml").write_text("seed: -1\n")
    done = subprocess.run(
        [sys.executable, "-m", "charlm", "config", "check", "bad.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "PYTHONPATH": str(Path(charlm.__file__).parents[1])},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("error: bad.yaml: seed: found -1; allowed: an integer \\u2265 0 and < 9223372036854775808\n")


def test_an_unexpected_error_keeps_its_traceback(cli, monkeypatch):
    def broken() -> str:
        raise RuntimeError("a bug of charlm")

    monkeypatch.setattr("charlm.config.options.options_table", broken)
    with pytest.raises(RuntimeError, match="a bug of charlm"):
        cli("config", "options")
