"""How many threads there are and how long idle ones spin: set by the machine, and left to a user who has set it."""

import os
import subprocess
import sys

import pytest
import torch

from charlm.system import device, host
from charlm.system.device import set_threads
from charlm.system.host import count_cores, limit_spinning, limit_threads

FEW, MANY = "2000", "100000"
VIRTUAL = "processor\t: 0\nflags\t\t: fpu sse2 hypervisor lahf_lm\nbogomips\t: 5200.00\n"


@pytest.mark.parametrize(
    ("cpuinfo", "running", "spins"),
    [
        (VIRTUAL, 1, MANY),
        (VIRTUAL.replace("hypervisor ", ""), 1, FEW),
        (None, 1, FEW),
        ("model name : hypervisors\n", 1, FEW),
        (VIRTUAL, 2, FEW),
        (VIRTUAL, "x", MANY),
    ],
)
def test_threads_spin_longer_on_a_virtual_machine_without_other_work(cpuinfo, running, spins, monkeypatch, tmp_path):
    monkeypatch.setenv("GOMP_SPINCOUNT", "")  # restored after the test
    monkeypatch.delenv("GOMP_SPINCOUNT")
    (tmp_path / "proc").mkdir()
    if cpuinfo is not None:
        (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
    if running is not None:
        (tmp_path / "proc/loadavg").write_text(f"0.50 0.60 0.70 {running}/123 4567\n")
    limit_spinning(tmp_path)
    assert os.environ["GOMP_SPINCOUNT"] == spins
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    limit_spinning(tmp_path)
    assert os.environ["GOMP_SPINCOUNT"] == "7"


@pytest.fixture
def eight_cores(monkeypatch):
    """As many as the affinity mask allows."""
    monkeypatch.setattr(host, "usable_cores", lambda: frozenset(range(8)))


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"job/a": "300000 100000\n"}, 3),
        ({"job/a": "max 100000\n", "job": "200000 100000\n", ".": "400000 100000\n"}, 2),
        ({"job/a": "20000 100000\n"}, 1),
        ({"job/a": "9900000 100000\n"}, 8),
        ({"job/a": "300000 0\n"}, 8),
        ({"job/b": "300000 100000\n"}, 8),
    ],
)
def test_as_many_cores_as_the_quotas_of_the_control_groups_allow(files, cores, write, tmp_path):
    write("proc/self/cgroup", "9:name=systemd:/job/b\n4:cpu,cpuacct:/job/a\n0::/job/a\n")
    for group, quota in files.items():
        write(f"sys/fs/cgroup/{group}/cpu.max", quota)
    assert count_cores(tmp_path) == cores


@pytest.mark.usefixtures("eight_cores")
def test_threads_are_limited_to_the_quota_unless_the_user_or_torchrun_says(write, tmp_path, monkeypatch):
    write("proc/self/cgroup", "0::/job\n")
    write("sys/fs/cgroup/job/cpu.max", "300000 100000\n")
    for name, value in ((None, None), ("RANK", "0"), ("OMP_NUM_THREADS", "7")):
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", {} if name is None else {name: value})
            limit_threads(tmp_path)
            assert os.environ.get("OMP_NUM_THREADS") == {"RANK": None, "OMP_NUM_THREADS": "7"}.get(name, "3")
            assert os.environ["OPENBLAS_NUM_THREADS"] == "1"


@pytest.mark.parametrize(("cores", "requested", "expected"), [(1, 0, 1), (1, 3, 3), (9, 0, 2)])
def test_a_training_takes_no_more_threads_than_cores_unless_told(cores, requested, expected, monkeypatch, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(device, "count_cores", lambda: cores)
    threads(2)
    set_threads(requested)
    assert torch.get_num_threads() == expected


def test_spins_are_set_before_torch_is_imported():
    program = (
        "import os, sys, charlm.cli; sys.argv = ['charlm', '--version']\n"
        "try: charlm.cli.main()\n"
        "finally: print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] in (f"{FEW} False", f"{MANY} False")
