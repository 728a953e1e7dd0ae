"""How long idle OpenMP threads spin before they sleep. Imports only the standard library."""

import os
import time
from pathlib import Path

_SPINS = 2_000  # tens of microseconds
_SPINS_WHERE_STOLEN = 3_000_000  # tens of milliseconds
_STOLEN_SHARE = 0.01


def limit_spinning(system: Path = Path("/")) -> None:
    """Set GOMP_SPINCOUNT unless the user did. torch's OpenMP reads it when torch is imported.

    By default threads spin for milliseconds. If another process keeps one of four cores busy, an LSTM then trains at
    800 characters/s, and with a short spin at 21,000; on an idle machine at 70,000 either way.
    On a VM that loses CPU to its host, waking a sleeping core is slow, so spin longer: with a short spin updates took
    1.2 to 4 times as long there (LSTM 1 × 384, RHN 320 of depth 6; LSTM 1 × 192 up to 14 times).
    If other processes also run on the VM, a long spin is worse again: 6 to 12 updates instead of 65 to 78.
    """
    if "GOMP_SPINCOUNT" in os.environ:
        return
    spin_long = _stolen_share(system) > _STOLEN_SHARE and not _others_work(system)
    os.environ["GOMP_SPINCOUNT"] = str(_SPINS_WHERE_STOLEN if spin_long else _SPINS)


def _stolen_share(system: Path) -> float:
    """Fraction of this machine's busy time that its host gave to others; 0 if the system does not say."""
    try:
        name, *ticks = (system / "proc/stat").read_text().split("\n", 1)[0].split()
        user, nice, kernel, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
    except (OSError, ValueError):
        return 0.0
    worked = user + nice + kernel + irq + softirq + steal
    return steal / worked if name == "cpu" and worked else 0.0


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
