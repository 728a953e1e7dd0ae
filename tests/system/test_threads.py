"""How long threads spin is set by what a host takes, and left to a user who has set it."""

import os
import subprocess
import sys

import pytest

from charlm.system.threads import limit_spinning

FEW, MANY = "2000", "3000000"


@pytest.fixture
def spins(monkeypatch, tmp_path):
    """GOMP_SPINCOUNT as it is set on a machine with this /proc/stat; None: it has none."""

    def limited(stat, before=None, running=1):
        monkeypatch.setenv("GOMP_SPINCOUNT", before or "")  # put back after the test
        if before is None:
            monkeypatch.delenv("GOMP_SPINCOUNT")
        (tmp_path / "proc").mkdir(exist_ok=True)
        if stat is not None:
            (tmp_path / "proc/stat").write_text(stat)
        if running is not None:
            (tmp_path / "proc/loadavg").write_text(f"0.50 0.60 0.70 {running}/123 4567\n")
        limit_spinning(tmp_path)
        return os.environ["GOMP_SPINCOUNT"]

    return limited


#           user nice system idle iowait irq softirq steal guest guest_nice
STOLEN = "cpu  800 0 100 90000 50 10 10 100 0 0\ncpu0 800 0 100 90000 50 10 10 0 0 0\n"


def test_where_a_host_takes_time_threads_spin_longer(spins):
    assert spins(STOLEN) == MANY
    assert spins(STOLEN.replace("10 100 0 0", "10 1 0 0")) == FEW  # 0.1 %
    assert spins(STOLEN.replace("10 100 0 0", "10 0 0 0")) == FEW


def test_idle_time_is_no_work_that_the_host_left_alone(spins):
    assert spins("cpu  97 0 0 900000000 900000000 0 0 3 0 0\n") == MANY


@pytest.mark.parametrize("stat", [None, "", "cpu", "cpu  1 2 3", "cpu  a b c d e f g h", "cpu 0 0 0 0 0 0 0 0 0 0"])
def test_a_system_that_does_not_tell_takes_none(spins, stat):
    assert spins(stat) == FEW


@pytest.mark.parametrize(("running", "found"), [(1, MANY), (2, FEW), (9, FEW), (None, MANY), ("x", MANY)])
def test_beside_other_work_they_spin_shortly(spins, running, found):
    assert spins(STOLEN, running=running) == found


def test_work_of_a_moment_is_none(spins, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "charlm.system.threads.time.sleep", lambda _: (tmp_path / "proc/loadavg").write_text("0 0 0 1/9 9")
    )
    assert spins(STOLEN, running=2) == MANY


def test_what_the_user_set_stands(spins):
    assert spins(STOLEN, before="7") == "7"


def test_set_before_torch_is_imported():
    program = (
        "import os, sys, charlm.cli\n"
        "assert 'torch' not in sys.modules\n"
        "sys.argv = ['charlm', '--version']\n"
        "try: charlm.cli.main()\n"
        "except SystemExit: pass\n"
        "print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    output = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert output.splitlines()[-1] in (f"{FEW} False", f"{MANY} False")
