"""The progress bar on stderr."""

import contextlib
import itertools
import sys
import time
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from charlm.system.console import terminal_columns
from charlm.system.formatting import format_duration


class ProgressBar:
    """A bar for the fraction of the run that is done; invisible if stderr is not a terminal, or if not `shown`."""

    def __init__(self, shown: bool = True) -> None:
        tqdm.monitor_interval = 0  # no thread that looks after bars
        self._bar = tqdm(
            total=1.0,
            file=sys.stderr,
            disable=None if shown else True,
            leave=False,
            bar_format="{desc} {percentage:3.0f}%|{bar:10}| {unit}",
            desc="? left",
            unit="step 0",
        )
        self._scores: list[str] = []
        self._shown_s = 0.0

    def note(self, row: Mapping[str, Any]) -> None:
        """Show the scores of this row of metrics."""
        nats, bits = f"{row['nats']:.3f} nats", f"{row['bpc']:.3f} bits/char"
        self._scores = [nats, f"{row['chars_per_s']:,.0f} chars/s", bits]

    def show(self, step: int, share: float, elapsed_s: float) -> None:
        """Move the bar to `share`, 0 to 1, at most every `_REFRESH_S`. Scores that do not fit are left out."""
        now_s = time.perf_counter()
        if self._bar.disable or now_s - self._shown_s < _REFRESH_S:
            return
        self._shown_s = now_s
        left = f"{format_duration(elapsed_s * (1 - share) / share) if share > 0 else '?'} left"
        self._bar.n = min(share, 1.0)
        self._bar.ncols = terminal_columns(sys.stderr)
        room = (self._bar.ncols or 80) - len(f"{left} 100%|{' ' * 10}| ")
        texts = itertools.accumulate([f"step {step}", *self._scores], "{} · {}".format)
        with contextlib.suppress(OSError):
            self._bar.unit = max((text for text in texts if len(text) <= room), key=len, default="")
            self._bar.set_description_str(left)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._bar.close()


_REFRESH_S = 0.2
