"""Lines of progress while a text is read."""

import numpy as np
import pytest

from charlm.data import progress
from charlm.data.corpus import load_corpus


@pytest.mark.parametrize("every_s", [0.0, 1000.0])
def test_what_takes_long_says_how_far_it_is(write, monkeypatch, capsys, every_s):
    monkeypatch.setattr(progress, "EVERY_S", every_s)
    text = "".join(f"{number}\n" for number in range(1000))
    load_corpus(write("text", text), level="char", split=(0.8, 0.2, 0), unit="line")
    said = [line.rpartition(": ")[2] for line in capsys.readouterr().err.splitlines() if line.endswith("%")]
    assert said == (["100%", "100%", "33%", "67%", "100%"] if every_s == 0 else [])


def test_blocks_pass_unchanged():
    blocks = [np.arange(3), np.arange(2)]
    assert list(progress.Progress(5, "x").of(blocks)) == blocks
