"""Evaluation: the cross-entropy of a whole text, with the state carried through it."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from charlm.data.encoded import EncodedText
from charlm.data.vocabulary import Ids
from charlm.inference.reader import Reader, evaluating, most_streams, window_steps, windows_between
from charlm.model import Network
from charlm.scored import ScoredText
from charlm.system.arrays import Floats32, Ints
from charlm.system.device import to_device
from charlm.system.formatting import nats_to_bits
from charlm.system.process_group import ONE_PROCESS, WHOLE_BATCH, ProcessGroup, Shard

WARMUP = 256
"""Characters that each stream reads unscored first, so that its state is nearly that of one long stream."""


@dataclass(frozen=True)
class Evaluation:
    """The score of a text."""

    of: ScoredText
    nats_sum: float
    """Cross-entropy of all that is scored, summed in float64."""
    elapsed_s: float
    symbol_nats: Floats32 | None = None
    """Cross-entropy of each scored symbol, a character, or a byte of a byte model; None unless asked for."""
    records: int | None = None
    """Number of records scored; None unless the model is one of records."""

    @property
    def nats_per_char(self) -> float:
        """The score. Of a byte model too: the sum over the bytes of a character."""
        return self.nats_sum / self.of.chars

    @property
    def bits_per_char(self) -> float:
        """The score in bits."""
        return nats_to_bits(self.nats_per_char)

    @property
    def perplexity_per_char(self) -> float:
        """e to the nats per character."""
        return math.exp(min(self.nats_per_char, 700.0))

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of the text in UTF-8; None where not all of the text was read: unknown characters, records."""
        if self.of.unknown or self.records is not None:
            return None
        return nats_to_bits(self.nats_sum / self.of.size_bytes)

    @property
    def nats_per_record(self) -> float | None:
        """None unless the model is one of records."""
        return None if self.records is None else self.nats_sum / self.records

    @property
    def chars_per_s(self) -> float:
        """Scored characters per second."""
        return self.of.chars / max(self.elapsed_s, 1e-9)


def evaluate(
    model: Network,
    text: EncodedText,
    *,
    streams: int | None = None,
    per_symbol: bool = False,
    group: ProcessGroup = ONE_PROCESS,
    check: Callable[[], object] = lambda: None,
) -> Evaluation:
    """Score every symbol of a text [N] given the symbols before it; DataError if the text is too short.

    The text is cut into up to `streams` contiguous parts, which are read side by side, see `score_windows`. None: as
    many as the device needs. For a model of records the text begins with the end of a record, and each part with a
    record.

    The processes of the group share the streams, and each returns the score of the whole text; `per_symbol` needs a
    single process. check: called before each window and after the last; its exception ends the evaluation.
    """
    assert group.size == 1 or not per_symbol
    ids = text.ids
    text.check_scorable("evaluation")
    begin_B = part_starts(ids, streams or most_streams(model), model.reset_id)
    with evaluating(model), torch.inference_mode():
        check()
        score = score_windows(
            model, text, begin_B, per_symbol=per_symbol, shard=group.shard, after=lambda nats_TB: check()
        )
    records = None
    if model.reset_id is not None:  # in blocks, because `ids` may be larger than memory
        blocks = (ids[at : at + 2**22] for at in range(1, len(ids), 2**22))
        records = sum(int(np.count_nonzero(block == model.reset_id)) for block in blocks)
    return replace(score, nats_sum=group.sums([score.nats_sum])[0], records=records)


def part_starts(ids: Ids, streams: int, reset_id: int | None) -> Ints:
    """Where each part of a text of N ids begins, [B]: up to `streams` nearly equal parts, fewer if they would be short.

    reset_id: the id that begins every part, see `CharLM.reset_id`.
    """
    targets = len(ids) - 1
    B = max(1, min(streams, targets // (4 * WARMUP)))
    begin_B = np.minimum(-(-targets // B) * np.arange(B), targets)
    if reset_id is not None:
        end_B, next_begin = np.append(begin_B[1:], targets), targets
        for b in reversed(range(1, B)):
            offsets = np.flatnonzero(ids[begin_B[b] : end_B[b]] == reset_id)
            next_begin = begin_B[b] = begin_B[b] + offsets[0] if len(offsets) else next_begin
    return begin_B


def score_windows(
    model: Network,
    text: EncodedText,
    begin_B: Ints,
    *,
    per_symbol: bool,
    after: Callable[[Tensor], object],
    steps: int | None = None,
    shard: Shard = WHOLE_BATCH,
) -> Evaluation:
    """Score a text [N], cut into parts at `begin_B`, window after window; also measures the time.

    Stream b reads part b in windows of `steps` characters, and carries the state between them. In running text it first
    reads the WARMUP characters before its part, unscored. The model must be in evaluation mode.

    per_symbol: see `evaluate`. after: called with the nats [T, B] of each window, which have a graph unless the caller
    turns gradients off; it may change the weights. shard: score only these streams, one of nearly equal shards of the
    B, perhaps empty; all shards have the same number of windows.
    """
    start_s = time.perf_counter()
    total, windows_TB = 0.0, []
    length_B = np.diff(begin_B, append=len(text.ids) - 1)
    for nats_TB in _window_nats(model, text, begin_B, length_B, steps, shard):
        # All results stay on the device until the end: reading them here would wait for it at every window.
        total = total + nats_TB.detach().sum(dtype=torch.float64)
        if per_symbol:
            windows_TB.append(nats_TB.detach())
        after(nats_TB)
    score = Evaluation(text.scored, float(total), time.perf_counter() - start_s)
    if not per_symbol:
        return score
    nats_BS = torch.cat(windows_TB).T.cpu().numpy()
    parts = [nats_S[:length] for nats_S, length in zip(nats_BS, length_B, strict=True)]
    return replace(score, symbol_nats=np.concatenate(parts)[text.given - 1 :])


def _window_nats(
    model: Network,
    text: EncodedText,
    begin_B: Ints,
    length_B: Ints,
    steps: int | None,
    shard: Shard,
) -> Iterator[Tensor]:
    """Yield the nats of each window; those of the given character and past the end of a part are 0."""
    own_rows = np.array_split(np.arange(len(begin_B)), shard.count)[shard.index]
    most_rows = -(-len(begin_B) // shard.count)  # of any shard
    device, longest_steps = model.device, window_steps(most_rows, model)
    scored = windows_between(0, int(length_B.max()), steps or longest_steps)
    if not len(own_rows):
        yield from (torch.zeros(length, 0, device=device) for _, length in scored)
        return
    own_begin_B = begin_B[own_rows]
    reader = Reader(model, text.ids, own_begin_B)
    if len(begin_B) > 1 and model.reset_id is None:
        with torch.no_grad():
            for offset, length in windows_between(-WARMUP, 0, longest_steps):
                reader.features(offset, length)
        if own_begin_B[0] == 0:  # nothing comes before the beginning of the text: what it has read does not count
            first_stream = torch.zeros(1, dtype=torch.int64, device=device)
            reader.state = tuple(layers.index_fill(1, first_stream, 0) for layers in reader.state)
    own_first_B = to_device(np.where(own_begin_B == 0, text.given - 1, 0), device)
    own_length_B = to_device(length_B[own_rows], device)
    for offset, length in scored:
        nats_TB = reader.nats(offset, length)
        steps_T1 = torch.arange(offset, offset + length, device=device).unsqueeze(1)
        yield torch.where((own_first_B <= steps_T1) & (steps_T1 < own_length_B), nats_TB, 0.0)
