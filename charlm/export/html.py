"""A model as one page of HTML, which runs it in a browser; charlm/web/model/ is the page.

The weights are int8 or float32, see `html_model.py`. What rounding them costs is measured on validation text.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.data.vocabulary import Ids
from charlm.errors import DataError, ExportError
from charlm.export.html_model import html_nats, packed_model
from charlm.inference import TrainedModel
from charlm.inference.evaluation import evaluate
from charlm.inference.novelty import WINDOW
from charlm.look.page import UNITS, model_facts, opening, tracking_units
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
_BASES = (0x9E3779B1, 0x85EBCA77)
_FINGERPRINT_BITS = 16


@dataclass(frozen=True)
class Costs:
    """What the page costs: nats, and room."""

    precision: str
    """int8 or float32."""
    before_nats: float | None
    """Nats per character of the model, on `scored` characters of validation text; None if that is gone."""
    after_nats: float | None
    """The same of the page's weights."""
    scored: int
    why_not: str
    """Why nothing was scored."""
    copies: dict[str, Any] | None
    """See `copies_of`."""

    @property
    def loss(self) -> float:
        """Relative increase of the loss, 0 if it is not known; the denominator is at least `_LEAST_NATS`."""
        if self.before_nats is None or self.after_nats is None:
            return 0.0
        return (self.after_nats - self.before_nats) / max(self.before_nats, _LEAST_NATS)

    def __str__(self) -> str:
        if self.before_nats is None:
            sentence = f"{self.precision}; nats not compared: {self.why_not}"
        else:
            sentence = (
                f"{self.precision}: {self.before_nats:.4f} nats per character before, {self.after_nats:.4f} after "
                f"({self.loss:+.2%}), on {self.scored:,} characters of validation text"
            )
        if (copies := self.copies) is None:
            return sentence
        size = sum(len(copies[name]["data"]) for name in ("counts", "fingerprints"))
        extent = "" if copies["covered"] == copies["total"] else f"the first {copies['covered']:,} of "
        return (
            f"{sentence}; copies: {format_bytes(size)} for {extent}{copies['total']:,} characters of training text; "
            f"a window of 20 that is new is taken for a copy once in {1 / max(copies['chance'], 1e-9):,.0f}"
        )


def write_html(trained: TrainedModel, path: Path, *, int8: bool = True, novelty: bool = False) -> Costs:
    """Write the page.

    novelty: with the windows of the training text, so that the page underlines copies; DataError if that text has
    changed or is gone. ExportError if int8 weights lose more than MOST_LOSS of the nats.
    """
    copies = copies_of(trained.training_splits("--novelty")["train"]) if novelty else None
    costs = _costs(trained, int8, copies)
    if not costs.loss <= MOST_LOSS:
        raise ExportError(
            f"html: {costs.precision} weights raise the loss from {costs.before_nats:.4f} to {costs.after_nats:.4f} "
            f"nats per character, by {costs.loss:.2%}; allowed: {MOST_LOSS:.1%}; use --float32"
        )
    data = model_facts(trained) | packed_model(trained, int8=int8)
    data |= {
        "precision": costs.precision,
        "validNats": trained.progress.get("valid_nats"),
        "nats": costs.after_nats,
        "scored": costs.scored,
        "copies": copies,
        "units": _named_units(trained),
    }
    path.write_bytes(html_page("model", f"{data['name']} · charlm", data, wasm=True).encode())
    return costs


def _costs(trained: TrainedModel, int8: bool, copies: dict[str, Any] | None) -> Costs:
    precision, exported = "int8" if int8 else "float32", trained.on_cpu_in_float32()
    length = min(max(_SCORED_WORK // trained.parameters, _LEAST_SCORED), _MOST_SCORED)
    try:
        ids: Ids = trained.split("valid")[:length]
        before = evaluate(exported.network, ids, exported.device)
    except DataError as error:
        return Costs(precision, None, None, 0, str(error), copies)
    if not math.isfinite(before.nats_sum):
        raise overflow()
    return Costs(precision, before.nats_per_char, html_nats(trained, ids, int8=int8), before.targets, "", copies)


def _named_units(trained: TrainedModel) -> list[dict[str, Any]]:
    """The units that go with a feature of the text, as a page of charlm look names them; none if that text is gone."""
    try:
        return tracking_units(trained.on_cpu_in_float32(), opening(trained, _UNITS_LENGTH), UNITS)
    except DataError:
        return []


def copies_of(ids: Ids) -> dict[str, Any]:
    """The set of the windows of a training text, or of its beginning, with which the page underlines copies.

    ids: [N] in the order in which the model reads them. Two hashes modulo 2³² of a window x_0 … x_19, one for each odd
    base b, both mixed by MurmurHash3's finalizer:

        Σ_j x_j b^(19 − j)

    The first chooses one of 2^bits buckets; the bucket stores 16 bits of the second. So a window that does not occur in
    the text is taken for a copy with a probability of (windows in a bucket) / 2¹⁶.
    """
    total, ids = len(ids), ids[: MOST_WINDOWS + WINDOW - 1]
    windows = max(0, len(ids) - WINDOW + 1)
    bits = max(1, windows.bit_length() - 1)
    buckets, fingerprints = (_mixed_hashes(ids, base, windows) for base in _BASES)
    keys = np.unique(
        ((buckets >> np.uint32(32 - bits)).astype(np.uint64) << _FINGERPRINT_BITS) | (fingerprints >> np.uint32(16))
    )
    counts = np.bincount((keys >> np.uint64(_FINGERPRINT_BITS)).astype(np.int64), minlength=2**bits)
    assert counts.max() < 256, counts.max()
    return {
        "window": WINDOW,
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
    for offset in range(WINDOW):
        hashes *= np.uint32(base)
        hashes += ids[offset : offset + windows].astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes ^= hashes >> np.uint32(shift)
        hashes *= np.uint32(factor)
    return hashes ^ (hashes >> np.uint32(16))
