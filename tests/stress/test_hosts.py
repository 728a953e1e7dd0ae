"""Processes on two machines: two network namespaces with a cable between them, and torchrun in each."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from charlm.checkpoint import read_checkpoint
from tests.conftest import ROOT, TINY, Result
from tests.text import words_text

pytestmark = pytest.mark.rare

HOSTS = tuple(f"charlm-{os.getpid()}-{letter}" for letter in "ab")
ADDRESSES = ("10.99.0.1", "10.99.0.2")

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


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[None]:
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces are made by root with Linux's ip")
    try:
        ip("netns", "add", HOSTS[0])
    except subprocess.CalledProcessError:
        pytest.skip("network namespaces are not allowed here")
    ip("netns", "add", HOSTS[1])
    try:
        ip("link", "add", "cable", "netns", HOSTS[0], "type", "veth", "peer", "name", "cable", "netns", HOSTS[1])
        for host, address in zip(HOSTS, ADDRESSES, strict=True):
            ip("-n", host, "addr", "add", f"{address}/24", "dev", "cable")
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "link", "set", "cable", "up")
        yield
    finally:
        for host in HOSTS:
            ip("netns", "del", host)


def launched(home: Path, number: int) -> "subprocess.Popen[str]":
    """torchrun on a host, in its folder, which holds the text. Only the first gets the config and writes the run."""
    home.mkdir()
    (home / "text.txt").write_text(words_text(3000))
    (home / "program.py").write_text(PROGRAM)
    if number == 0:
        (home / "tiny.yaml").write_text(TINY.format(source="text.txt"))
    command = ["ip", "netns", "exec", HOSTS[number], sys.executable, "-m", "torch.distributed.run"]
    command += ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", f"--rdzv-endpoint={ADDRESSES[0]}:29500"]
    # Without names for the addresses, torchrun cannot find out which of the two it is.
    command += [f"--rdzv-conf=is_host={int(number == 0)}", f"--local-addr={ADDRESSES[number]}", "--max-restarts=2"]
    command += ["program.py", "train", "--config", "tiny.yaml", "--run-dir", "run"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "cable", "CHARLM_TIMEOUT_S": "60"}
    return subprocess.Popen(command, cwd=home, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.usefixtures("hosts")
def test_two_hosts_train_as_one_process_does_although_one_is_killed(tmp_path: Path, cli: Callable[..., Result]) -> None:
    processes = [launched(tmp_path / HOSTS[number], number) for number in range(2)]
    printed = [process.communicate(timeout=180)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    first, second = (tmp_path / host / "run" for host in HOSTS)
    assert not second.exists()
    assert ["done     max_steps" in text for text in printed] == [True, False]
    assert "resume   " in printed[0]

    (tmp_path / "tiny.yaml").write_text(TINY.format(source=tmp_path / HOSTS[0] / "text.txt"))
    assert cli("train", "--config", tmp_path / "tiny.yaml", "--run-dir", tmp_path / "one").code == 0
    found, wanted = (read_checkpoint(run / "checkpoints/last.safetensors") for run in (first, tmp_path / "one"))
    assert found.progress["step"] == wanted.progress["step"] == 6
    for name, weight in wanted.weights.items():
        torch.testing.assert_close(found.weights[name], weight, rtol=1e-3, atol=1e-5)
