"""How long idle threads spin is set by the kind of machine and its other work, and left to a user who has set it."""

import os
import subprocess
import sys

import pytest

from charlm.system.host import limit_spinning

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
