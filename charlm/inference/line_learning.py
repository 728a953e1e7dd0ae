"""Dynamic evaluation of lines as they come: the model learns from those that have been scored."""

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from charlm.inference.dynamic import Adaptation, Rule, gradient_rms
from charlm.inference.evaluation import Cut, Ids, scored_windows
from charlm.model import CharLM

LINES = Adaptation(lr=0.00001, decay=0.01, steps=64)
"""How fast a model learns from lines, chosen on 12,000 lines of another log (benchmarks/anomalies.py --seed 3).

At lr 0.00005 and decay 0.0005 the weights drift: after some thousand lines the scores are worse than without learning.
"""
_LINES = 16
"""Lines of a segment."""
_BYTES = 1 << 14
"""A segment ends earlier with the line that fills so many bytes."""


class LineLearner:
    """Learns from one segment of lines after another, by the rule of dynamic evaluation.

    What a segment holds depends on the lines alone, not on when they come. The lines of a segment are read side by
    side, in windows of `adaptation.steps`, with a step of the weights after each window.

    train_ids: the training text, which gives RMS.
    """

    def __init__(self, network: CharLM, train_ids: Ids, device: torch.device, adaptation: Adaptation) -> None:
        assert network.begins is not None
        self._network, self._newline, self._device, self._steps = network, network.begins, device, adaptation.steps
        sizes = gradient_rms(network, train_ids, device, steps=adaptation.steps, streams=_LINES)
        self._rule = Rule.of(network, sizes, adaptation)
        self._lines = self._bytes = 0
        self._ids: list[Ids] = []
        self._read = 1

    def restoring(self) -> contextlib.AbstractContextManager[None]:
        """Put the trained weights back after the block."""
        return self._rule.restoring()

    def segments(self, block: bytes) -> Iterator[bytes]:
        """Yield the parts of a block, each in one segment. After the last part of a segment, learns from the segment.

        The caller scores each part when it gets it, and calls `has_read`.
        """
        start = at = 0
        while at < len(block):
            end = block.find(b"\n", at) + 1
            self._lines += 1
            self._bytes += (end or len(block)) - at
            at = end or len(block)
            # A part of a long line is a segment of its own.
            if self._lines == _LINES or self._bytes >= _BYTES or not end:
                yield block[start:at]
                self._learn()
                start = at
        if start < len(block):
            yield block[start:]

    def has_read(self, ids: Ids, read: int) -> None:
        """Take the ids of a part [N], of which the first `read` were there before."""
        if self._ids:
            self._ids.append(ids[read:])
        else:
            self._ids, self._read = [ids], read

    def _learn(self) -> None:
        """Learn from the segment, and begin the next one."""
        ids = np.concatenate(self._ids)
        if len(ids) > self._read:
            cut = Cut.of_lines(ids, self._read, _LINES, self._newline)
            windows = scored_windows(self._network, ids, self._device, cut, steps=self._steps)
            for _ in self._rule.learning_from(windows):
                pass
        self._lines = self._bytes = 0
        self._ids = []
