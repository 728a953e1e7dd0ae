"""The progress bar of a training."""

import io
import sys

import pytest

from charlm.training.progress import Progress


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (200, "1 h 1 min left · step 12345 · 1.500 nats · 109,000 chars/s · 2.164 bits/char"),
        (80, "1 h 1 min left · step 12345 · 1.500 nats · 109,000 chars/s"),
        (60, "1 h 1 min left · step 12345 · 1.500 nats"),
        (40, "1 h 1 min left"),
    ],
)
def test_the_time_left_comes_first_and_what_does_not_fit_is_left_out(monkeypatch, columns, shown):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(columns))
    progress = Progress()
    progress.note({"nats": 1.5, "bpc": 2.164, "chars_per_s": 109_000.0})
    progress.show(12_345, 0.5, 3660.0)
    assert f" 50%|█████     | {shown}" in [line.rstrip() for line in terminal.getvalue().split("\r")]
    progress.close()
