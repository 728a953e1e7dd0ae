"""Long curves with fewer points."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST = 1200
"""Points of a curve on the page, which is about as many pixels as it is wide."""


def stretches(rows: int, most: int = MOST) -> npt.NDArray[np.int64]:
    """Where each stretch of rows starts that becomes one point: at most `most`, and fewer rows each at the beginning.

    Two thirds of the points lie evenly. The others lie evenly on a logarithmic axis, where the beginning is wide.
    """
    if rows <= most:
        return np.arange(rows)
    even = np.linspace(0, rows, 2 * most // 3, endpoint=False).astype(np.int64)
    early = np.geomspace(1, rows, most // 3, endpoint=False).astype(np.int64)
    return np.unique(np.concatenate([even, early]))


def last_of(column: Floats, starts: npt.NDArray[np.int64]) -> Floats:
    """The last value of each stretch."""
    return column[np.append(starts[1:], len(column)) - 1]


def summary_of(column: Floats, starts: npt.NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
    """Mean, least and greatest finite value of each stretch; nan for a stretch without one."""
    finite = np.isfinite(column)
    counts = np.add.reduceat(finite.astype(np.float64), starts)
    with np.errstate(invalid="ignore"):
        mean = np.add.reduceat(np.where(finite, column, 0.0), starts) / counts
    known = np.where(finite, column, np.nan)
    return mean, np.fmin.reduceat(known, starts), np.fmax.reduceat(known, starts)
