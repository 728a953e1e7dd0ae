"""The progress bar on stderr."""

import contextlib
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
            unit="update 0",
        )
        self._scores = ""
        self._shown_s = 0.0

    def note(self, row: Mapping[str, Any]) -> None:
        """Show the scores of this row of metrics."""
        self._scores = f" · {row['nats']:.3f} nats · {row['chars_per_s']:,.0f} chars/s · {row['bpc']:.3f} bits/char"

    def show(self, step: int, share: float, elapsed_s: float) -> None:
        """Move the bar to `share`, 0 to 1, at most every `_REFRESH_S`. tqdm cuts what does not fit."""
        now_s = time.perf_counter()
        if self._bar.disable or now_s - self._shown_s < _REFRESH_S:
            return
        self._shown_s = now_s
        left = format_duration(elapsed_s * (1 - share) / share) if share > 0 else "?"
        self._bar.n = min(share, 1.0)
        self._bar.ncols = terminal_columns(sys.stderr)
        self._bar.unit = f"update {step}{self._scores}"
        with contextlib.suppress(OSError):
            self._bar.set_description_str(f"{left} left")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._bar.close()


_REFRESH_S = 0.2
