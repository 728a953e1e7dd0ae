"""How long OpenMP's threads spin for their next work before they sleep (standard library only)."""

import os
import time
from pathlib import Path

_SPINS = 2_000  # tens of microseconds
_SPINS_WHERE_STOLEN = 3_000_000  # tens of milliseconds
_STOLEN_SHARE = 0.01


def limit_spinning(system: Path = Path("/")) -> None:
    """Set GOMP_SPINCOUNT, unless the user has; torch's OpenMP reads it as torch is imported.

    Left alone, threads spin for milliseconds. With one of four cores busy elsewhere an LSTM then trains at 800
    characters/s, at the few spins set here at 21,000; on an idle machine at 70,000 either way. Not so on a virtual
    machine whose host has work for others: a processor that sleeps is woken late. Updates took there 1.2 to 4 times as
    long with few spins as with many (LSTM 1 × 384, RHN 320 of depth 6), those of an LSTM 1 × 192 up to 14 times.
    Beside other work on the machine itself many spins are worse there too: 6 to 12 updates where few gave 65 to 78.
    """
    if "GOMP_SPINCOUNT" in os.environ:
        return
    spin_long = _stolen_share(system) > _STOLEN_SHARE and not _others_work(system)
    os.environ["GOMP_SPINCOUNT"] = str(_SPINS_WHERE_STOLEN if spin_long else _SPINS)


def _stolen_share(system: Path) -> float:
    """The share of the time this machine had work that its host gave to others; 0 where it does not tell."""
    try:
        name, *ticks = (system / "proc/stat").read_text().split("\n", 1)[0].split()
        user, nice, kernel, _idle, _iowait, irq, softirq, steal = map(int, ticks[:8])
    except (OSError, ValueError):
        return 0.0
    worked = user + nice + kernel + irq + softirq + steal
    return steal / worked if name == "cpu" and worked else 0.0


def _others_work(system: Path) -> bool:
    """Whether other processes are at work on this machine, at each of some moments."""
    for _ in range(5):
        try:
            running = int((system / "proc/loadavg").read_text().split()[3].split("/")[0])
        except (OSError, ValueError, IndexError):
            return False
        if running <= 1:  # this process alone
            return False
        time.sleep(0.002)
    return True
