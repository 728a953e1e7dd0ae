"""Nothing but `charlm data fetch` ever asks for the network."""

import json
import socket
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Python calls the hook before any socket is connected or any name is looked up, whoever asks for it.
PROGRAM = """
import json, sys

def refuse(event, arguments):
    if event.removeprefix("socket.") in ("connect", "sendto", "sendmsg", "bind", "getaddrinfo", "gethostbyname"):
        raise RuntimeError(f"network: {event}")

sys.addaudithook(refuse)
from charlm.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["charlm", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"{words}: exit code {end.code}")
"""


def offline(*commands: list[object]) -> "subprocess.CompletedProcess[str]":
    """Runs commands one after the other in a process that may not use the network."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(commands, default=str)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
def test_training_sampling_and_scoring_need_no_network(tiny_config, tmp_path):
    run = tmp_path / "run"
    done = offline(
        ["--version"],
        ["data", "list"],
        ["train", "--config", tiny_config, "--run-dir", run],
        ["train", "--resume", "--run-dir", run, "--set", "train.max_steps=8"],
        ["sample", run, "--length", 20, "--novelty"],
        ["eval", run, "--dynamic"],
    )
    assert done.returncode == 0, done.stderr


def test_a_download_would_be_noticed(tmp_path):
    done = offline(["data", "fetch", "tinyshakespeare", "--data-dir", tmp_path])
    assert done.returncode != 0
    assert "network: socket." in done.stderr


def test_the_tests_themselves_are_refused():
    with socket.socket() as asking, pytest.raises(AssertionError, match="a test asks for the network"):
        asking.connect(("192.0.2.1", 80))  # reserved for documentation
