"""The progress bar on stderr."""

import contextlib
import sys
import time

from tqdm import tqdm

from charlm.system.formatting import format_duration, nats_to_bits
from charlm.training.metrics import Row


class Progress:
    """A bar for the fraction of the run that is done; invisible if stderr is not a terminal, or if not `shown`."""

    def __init__(self, shown: bool = True) -> None:
        self._bar = _Bar(
            total=1.0,
            file=sys.stderr,
            disable=None if shown else True,
            leave=False,
            bar_format="{percentage:3.0f}%|{bar:20}| {desc}",
        )
        self._note = ""
        self._shown_s = 0.0

    def note(self, row: Row) -> None:
        """Show the scores of this row."""
        self._note = f" · {row.nats:.3f} nats · {nats_to_bits(row.nats):.3f} bits/char · {row.chars_per_s:,.0f} chars/s"

    def show(self, step: int, share: float, elapsed_s: float) -> None:
        """Move the bar to `share`, 0 to 1, at most every `_REFRESH_S`."""
        now_s = time.perf_counter()
        if self._bar.disable or now_s - self._shown_s < _REFRESH_S:
            return
        self._shown_s = now_s
        left = format_duration(elapsed_s * (1 - share) / share) if share > 0 else "?"
        self._bar.n = min(share, 1.0)
        with contextlib.suppress(OSError):
            self._bar.set_description_str(f"step {step}{self._note} · {left} left")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._bar.close()


class _Bar(tqdm):
    monitor_interval = 0  # no thread that looks after bars that are not shown for long


_REFRESH_S = 0.2
