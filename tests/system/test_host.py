"""How many threads there are and how long idle ones spin: set by the machine, and left to a user who has set it."""

import os
import subprocess
import sys

import pytest
import torch

from charlm.system import host
from charlm.system.device import set_threads
from charlm.system.host import count_cores, limit_spinning, limit_threads

FEW, MANY = "2000", "100000"
VIRTUAL = "processor\t: 0\nflags\t\t: fpu sse2 hypervisor lahf_lm\nbogomips\t: 5200.00\n"


@pytest.mark.parametrize(
    ("cpuinfo", "running", "spins"),
    [
        (VIRTUAL, 1, MANY),
        (VIRTUAL.replace("hypervisor ", ""), 1, FEW),
        *((cpuinfo, 1, FEW) for cpuinfo in (None, "", "flags", "Features : fp asimd", "model name : hypervisors\n")),
        *((VIRTUAL, running, FEW) for running in (2, 9)),
        *((VIRTUAL, running, MANY) for running in (None, "x")),
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


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"job/a/cpu.max": "max 100000\n"}, 8),
        ({"job/a/cpu.max": "300000 100000\n"}, 3),
        ({"job/a/cpu.max": "max 100000\n", "job/cpu.max": "200000 100000\n", "cpu.max": "400000 100000\n"}, 2),
        ({"job/a/cpu.max": "150000 100000\n"}, 1),
        ({"job/a/cpu.max": "20000 100000\n"}, 1),
        ({"job/a/cpu.max": "9900000 100000\n"}, 8),
        *(({"job/a/cpu.max": text}, 8) for text in ("", "300000\n", "a b\n", "300000 0\n")),
        ({"job/b/cpu.max": "300000 100000\n"}, 8),
    ],
)
def test_as_many_cores_as_the_quotas_of_the_control_groups_allow(files, cores, monkeypatch, tmp_path):
    monkeypatch.setattr(host, "usable_cores", lambda: frozenset(range(8)))
    within = {"proc/self/cgroup": "9:name=systemd:/job/b\n4:cpu,cpuacct:/job/a\n0::/job/a\n"}
    for name, value in (within | {f"sys/fs/cgroup/{name}": value for name, value in files.items()}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(value)
    assert count_cores(tmp_path) == cores
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "")  # restored after the test
    for variable, value in (("RANK", "0"), ("OMP_NUM_THREADS", "7"), ("", "")):
        monkeypatch.delenv("RANK", raising=False)
        monkeypatch.delenv("OMP_NUM_THREADS")
        if variable:
            monkeypatch.setenv(variable, value)
        before = dict(os.environ)
        limit_threads(tmp_path)
        limit = {"OMP_NUM_THREADS": str(cores)} if cores < 8 and not variable else {}
        assert os.environ == before | limit
        monkeypatch.setenv("OMP_NUM_THREADS", "")


def test_a_training_takes_no_more_threads_than_cores_unless_told(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(host, "usable_cores", lambda: frozenset(range(4)))
    before = torch.get_num_threads()
    try:
        for quota, requested, threads in ((1.0, 0, 1), (1.0, 3, 3), (9.0, 0, 2)):
            monkeypatch.setattr(host, "_quota_cpus", lambda system, quota=quota: quota)
            torch.set_num_threads(2)
            set_threads(requested)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


COMMAND = """
import os, sys, charlm.cli
assert 'torch' not in sys.modules
sys.argv = ['charlm', '--version']
try: charlm.cli.main()
except SystemExit: pass
print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)
"""
FUNCTION = """
import builtins, os, charlm
imported = builtins.__import__
def stopping(name, *of):
    if name == 'torch': raise SystemExit(print(os.environ.get('GOMP_SPINCOUNT'), False))
    return imported(name, *of)
builtins.__import__ = stopping
try: charlm.train('.')
except SystemExit: assert 'GOMP_SPINCOUNT' not in os.environ
else: raise AssertionError
"""


@pytest.mark.parametrize(
    "program", [COMMAND, FUNCTION, FUNCTION.replace("train('.')", "load(__import__('sys').executable)")]
)
def test_set_before_torch_is_imported(program):
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert output.splitlines()[-1] in (f"{FEW} False", f"{MANY} False")
