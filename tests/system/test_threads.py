"""How long threads spin is set by the kind of machine, and left to a user who has set it."""

import os
import subprocess
import sys

import pytest

from charlm.system.host import limit_spinning

FEW, MANY = "2000", "100000"
VIRTUAL = "processor\t: 0\nflags\t\t: fpu sse2 hypervisor lahf_lm\nbogomips\t: 5200.00\n"


@pytest.fixture
def spins(monkeypatch, tmp_path):
    """GOMP_SPINCOUNT as it is set on a machine with this /proc/cpuinfo; None: it has none."""

    def limited(cpuinfo, before=None, running=1):
        monkeypatch.setenv("GOMP_SPINCOUNT", before or "")  # put back after the test
        if before is None:
            monkeypatch.delenv("GOMP_SPINCOUNT")
        (tmp_path / "proc").mkdir(exist_ok=True)
        if cpuinfo is not None:
            (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
        if running is not None:
            (tmp_path / "proc/loadavg").write_text(f"0.50 0.60 0.70 {running}/123 4567\n")
        limit_spinning(tmp_path)
        return os.environ["GOMP_SPINCOUNT"]

    return limited


def test_on_a_virtual_machine_threads_spin_longer(spins):
    assert spins(VIRTUAL) == MANY
    assert spins(VIRTUAL.replace("hypervisor ", "")) == FEW


@pytest.mark.parametrize("cpuinfo", [None, "", "flags", "Features : fp asimd", "model name : hypervisors\n"])
def test_a_system_that_does_not_say_is_not_virtual(spins, cpuinfo):
    assert spins(cpuinfo) == FEW


@pytest.mark.parametrize(("running", "found"), [(1, MANY), (2, FEW), (9, FEW), (None, MANY), ("x", MANY)])
def test_beside_other_work_they_spin_shortly(spins, running, found):
    assert spins(VIRTUAL, running=running) == found


def test_work_of_a_moment_is_none(spins, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "charlm.system.host.time.sleep", lambda _: (tmp_path / "proc/loadavg").write_text("0 0 0 1/9 9")
    )
    assert spins(VIRTUAL, running=2) == MANY


def test_what_the_user_set_stands(spins):
    assert spins(VIRTUAL, before="7") == "7"


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
