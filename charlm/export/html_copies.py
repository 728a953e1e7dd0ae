"""The windows of a training text as a set in a page, which underlines what a model copies.

Two hashes modulo 2³² of a window x_0 … x_19 of ids, one for each odd base b, both mixed by MurmurHash3's finalizer:

    Σ_j x_j b^(19 − j)

The first chooses one of 2^bits buckets; the bucket stores 16 bits of the second. So a window that does not occur in the
text is taken for a copy with a probability of (windows in a bucket) / 2¹⁶.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm.data.hashes import window_hashes
from charlm.inference.novelty import WINDOW, Ids
from charlm.web.page import packed

MOST_WINDOWS = 2**22
"""Windows in one page: about 13 MB. Only the beginning of a longer text is covered."""
_BASES = (0x9E3779B1, 0x85EBCA77)
_FINGERPRINT_BITS = 16

Hashes = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Copies:
    """The windows of a training text, or of its beginning."""

    covered: int
    """Ids of the text that are covered."""
    total: int
    """Ids of the text."""
    chance: float
    """The probability that a window of another text is taken for one of this text."""
    counts_B: npt.NDArray[np.uint8]
    """How many windows are in each bucket."""
    fingerprints_N: npt.NDArray[np.uint16]
    """16 more bits of each window's hash, bucket after bucket."""

    def packed(self) -> dict[str, Any]:
        """For the page."""
        return {
            "window": WINDOW,
            "bases": _BASES,
            "covered": self.covered,
            "total": self.total,
            "chance": self.chance,
            "counts": packed(self.counts_B),
            "fingerprints": packed(self.fingerprints_N),
        }


def copies_of(ids: Ids) -> Copies:
    """The set of the windows of `ids`, [N] in the order in which the model reads them."""
    total, ids = len(ids), ids[: MOST_WINDOWS + WINDOW - 1]
    count = max(0, len(ids) - WINDOW + 1)
    bits = max(1, count.bit_length() - 1)
    places, fingerprints = (_mixed(window_hashes(ids, WINDOW, np.uint32(base))) for base in _BASES)
    keys = np.unique(
        ((places >> np.uint32(32 - bits)).astype(np.uint64) << _FINGERPRINT_BITS) | (fingerprints >> np.uint32(16))
    )
    counts = np.bincount((keys >> np.uint64(_FINGERPRINT_BITS)).astype(np.int64), minlength=2**bits)
    assert counts.max() < 256, counts.max()
    return Copies(
        covered=len(ids),
        total=total,
        chance=len(keys) / 2 ** (bits + _FINGERPRINT_BITS),
        counts_B=counts.astype(np.uint8),
        fingerprints_N=keys.astype(np.uint16),  # the lower bits
    )


def _mixed(hashes: Hashes) -> Hashes:
    """MurmurHash3's finalizer, modulo 2³²; a bijection whose result depends on all bits."""
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes ^= hashes >> np.uint32(shift)
        hashes *= np.uint32(factor)
    return hashes ^ (hashes >> np.uint32(16))
