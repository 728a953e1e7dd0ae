"""How many threads there are and how long idle ones spin: set by the machine, and left to a user who has set it."""

import os

import pytest
import torch

from charlm.system import device, host
from charlm.system.device import set_threads
from charlm.system.host import count_cores, limit_spinning, limit_threads


@pytest.mark.parametrize(
    ("flags", "running", "spins"),
    [("sse2 hypervisor", 1, "100000"), ("sse2", 1, "2000"), ("sse2 hypervisor", 2, "2000")],
)
def test_threads_spin_longer_on_a_virtual_machine_without_other_work(
    flags, running, spins, monkeypatch, write, tmp_path
):
    monkeypatch.setenv("GOMP_SPINCOUNT", "")  # restored after the test
    monkeypatch.delenv("GOMP_SPINCOUNT")
    write("proc/cpuinfo", f"processor\t: 0\nflags\t\t: fpu {flags} lahf_lm\n")
    write("proc/loadavg", f"0.50 0.60 0.70 {running}/123 4567\n")
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
        ({"job/a": "max 100000\n", "job": "200000 100000\n", ".": "400000 100000\n"}, 2),
        ({"job/a": "20000 100000\n"}, 1),
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
