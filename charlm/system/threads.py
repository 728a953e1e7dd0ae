"""How long idle OpenMP threads spin before they sleep. Imports only the standard library."""

import os
import time
from pathlib import Path

_SPINS = 2_000  # tens of microseconds
_SPINS_ON_VM = 100_000  # milliseconds: longer than the main thread works between two parallel regions


def limit_spinning(system: Path = Path("/")) -> None:
    """Set GOMP_SPINCOUNT unless the user did. torch's OpenMP reads it when torch is imported.

    By default threads spin for milliseconds. If another process keeps one of four cores busy, an LSTM then trains at
    800 characters/s, and with a short spin at 21,000; on an idle machine at 70,000 either way.
    On a virtual machine waking a sleeping core is slow: with a short spin an update of an LSTM of 384 units or an RHN
    of 224 took 1.3 to 1.5 times as long on two cores. So threads spin longer there, unless other processes are working
    now: beside those an update takes up to twice as long with a long spin.
    """
    if "GOMP_SPINCOUNT" not in os.environ:
        spins = _SPINS_ON_VM if _is_virtual(system) and not _others_work(system) else _SPINS
        os.environ["GOMP_SPINCOUNT"] = str(spins)


def _is_virtual(system: Path) -> bool:
    """True on an x86 virtual machine; other CPUs do not say."""
    try:
        return " hypervisor " in (system / "proc/cpuinfo").read_text()
    except (OSError, ValueError):
        return False


def _others_work(system: Path) -> bool:
    """True if other processes run on this machine at each of five moments."""
    for _ in range(5):
        try:
            running = int((system / "proc/loadavg").read_text().split()[3].split("/")[0])
        except (OSError, ValueError, IndexError):
            return False
        if running <= 1:  # only this process
            return False
        time.sleep(0.002)
    return True
