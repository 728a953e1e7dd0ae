"""A model as one page of HTML, which runs it in a browser; charlm/web/model/ is the page.

The weights are int8 or float32, see `html_model.py`. What rounding them costs is measured on validation text.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.data.vocabulary import Ids
from charlm.errors import CharlmError, DataError
from charlm.export.html_model import packed_model
from charlm.inference.evaluation import Evaluation, evaluate
from charlm.inference.novelty import NGRAM
from charlm.inference.trained import TrainedModel
from charlm.look.page import model_facts, opening, tracking_units
from charlm.model import overflow
from charlm.system.formatting import format_bytes
from charlm.web.page import html_page, packed

MOST_LOSS = 0.005
"""The share of its nats that a model may lose."""
_LEAST_NATS = 0.001
"""A loss below counts as this one; a text of one character has 0."""
_LEAST_SCORED, _MOST_SCORED = 10_000, 100_000
"""Characters of validation text that are scored, if there are so many."""
_SCORED_WORK = 10**11
"""Characters times parameters that are scored: a few seconds on two cores."""
MOST_WINDOWS = 2**22
"""Windows of the training text in a page: about 13 MB. Of a longer text only the beginning is in the page."""
_UNITS_LENGTH = 5000
"""Characters of validation text by which units get their names."""
_EXAMPLE_LENGTH = 240
_BASES = (0x9E3779B1, 0x85EBCA77)
_FINGERPRINT_BITS = 16


def html_file(trained: TrainedModel, *, int8: bool = True, novelty: bool = False) -> tuple[bytes, str]:
    """The page, and what it costs: nats, and room.

    novelty: with the windows of the training text, so that the page underlines copies; DataError if that text has
    changed or is gone. CharlmError if int8 weights lose more than MOST_LOSS of the nats.
    """
    trained = trained.on_cpu_in_float32()
    copies = copies_of(trained.training_splits("--novelty")["train"]) if novelty else None
    units = _named_units(trained)
    ids, why_not = _validation_text(trained)
    before = _score(trained, ids)
    data = model_facts(trained) | packed_model(trained, int8=int8)
    after = _score(trained, ids)
    precision = "int8" if int8 else "float32"
    if before is None or after is None:
        cost = f"{precision}; nats not compared: {why_not}"
    else:
        cost = f"{precision}: {_compared(before, after)}"
    if copies is not None:
        cost += f"; {_room(copies)}"
    data |= {
        "precision": precision,
        "validNats": trained.progress.get("valid_nats"),
        "nats": None if after is None else after.nats_per_char,
        "scored": 0 if after is None else after.targets,
        "copies": copies,
        "units": units,
        "example": _example(trained),
    }
    return html_page("model", f"{data['name']} · charlm", data, wasm=True).encode(), cost


def _named_units(trained: TrainedModel) -> list[dict[str, Any]]:
    """The units that go with a feature of the text, as a page of charlm look names them; none if that text is gone."""
    try:
        return [*tracking_units(trained, opening(trained, _UNITS_LENGTH)).values()]
    except DataError:
        return []


def _example(trained: TrainedModel) -> str:
    """A text to complete and to score: the beginning of the validation text up to a space; "" if that text is gone."""
    try:
        ids = opening(trained, _EXAMPLE_LENGTH)
    except DataError:
        return ""
    text = trained.vocabulary.decode(ids.tolist()).strip("\n")
    return text.rpartition(" ")[0] or text


def _validation_text(trained: TrainedModel) -> tuple[Ids | None, str]:
    """The ids to score; None, and why, if that text is gone."""
    length = min(max(_SCORED_WORK // trained.parameters, _LEAST_SCORED), _MOST_SCORED)
    try:
        return trained.split("valid")[:length], ""
    except DataError as error:
        return None, str(error)


def _score(trained: TrainedModel, ids: Ids | None) -> Evaluation | None:
    if ids is None:
        return None
    score = evaluate(trained.network, ids)
    if not math.isfinite(score.nats_sum):
        raise overflow()
    return score


def _compared(before: Evaluation, after: Evaluation) -> str:
    """Both scores in words; CharlmError if too much is lost."""
    nats, rounded = before.nats_per_char, after.nats_per_char
    loss = (rounded - nats) / max(nats, _LEAST_NATS)
    if loss > MOST_LOSS:
        raise CharlmError(
            f"html: int8 weights raise the loss from {nats:.4f} to {rounded:.4f} nats per character, by {loss:.2%}; "
            f"allowed: {MOST_LOSS:.1%}; use --float32"
        )
    return (
        f"{nats:.4f} nats per character before, {rounded:.4f} after ({loss:+.2%}), on {before.targets:,} characters of "
        "validation text"
    )


def _room(copies: dict[str, Any]) -> str:
    """The size of `copies_of` in words."""
    size = sum(len(copies[name]["data"]) for name in ("counts", "fingerprints"))
    extent = "" if copies["covered"] == copies["total"] else f"the first {copies['covered']:,} of "
    return (
        f"copies: {format_bytes(size)} for {extent}{copies['total']:,} characters of training text; "
        f"a window of 20 that is new is taken for a copy once in {1 / max(copies['chance'], 1e-9):,.0f}"
    )


def copies_of(ids: Ids) -> dict[str, Any]:
    """The set of the windows of a training text, or of its beginning, with which the page underlines copies.

    ids: [N] in the order in which the model reads them. Two hashes modulo 2³² of a window x_0 … x_19, one for each odd
    base b, both mixed by MurmurHash3's finalizer:

        Σ_j x_j b^(19 − j)

    The first chooses one of 2^bits buckets; the bucket stores 16 bits of the second. So a window that does not occur in
    the text is taken for a copy with a probability of (windows in a bucket) / 2¹⁶.
    """
    total, ids = len(ids), ids[: MOST_WINDOWS + NGRAM - 1]
    windows = max(0, len(ids) - NGRAM + 1)
    bits = max(1, windows.bit_length() - 1)
    buckets, fingerprints = (_mixed_hashes(ids, base, windows) for base in _BASES)
    keys = np.unique(
        ((buckets >> np.uint32(32 - bits)).astype(np.uint64) << _FINGERPRINT_BITS) | (fingerprints >> np.uint32(16))
    )
    counts = np.bincount((keys >> np.uint64(_FINGERPRINT_BITS)).astype(np.int64), minlength=2**bits)
    assert counts.max() < 256, counts.max()
    return {
        "window": NGRAM,
        "bases": _BASES,
        "covered": len(ids),
        "total": total,
        "chance": len(keys) / 2 ** (bits + _FINGERPRINT_BITS),
        "counts": packed(counts.astype(np.uint8)),  # of the windows in each bucket
        "fingerprints": packed(keys.astype(np.uint16)),  # the lower bits, bucket after bucket
    }


def _mixed_hashes(ids: Ids, base: int, windows: int) -> npt.NDArray[np.uint32]:
    """The hash of each window, after MurmurHash3's finalizer: a bijection whose result depends on all bits."""
    hashes = np.zeros(windows, np.uint32)
    for offset in range(NGRAM):
        hashes *= np.uint32(base)
        hashes += ids[offset : offset + windows].astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes ^= hashes >> np.uint32(shift)
        hashes *= np.uint32(factor)
    return hashes ^ (hashes >> np.uint32(16))
