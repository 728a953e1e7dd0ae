"""The page of runs: everything that charlm/web/report/ shows, thinned and packed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from charlm import __version__
from charlm.config.yaml import dump_flow
from charlm.report.run import PLACES, VALUES, Floats, RunRecord, short_names
from charlm.system.formatting import one_line, to_json
from charlm.web.page import html_page, packed

MOST = 1200
"""Points of a curve on the page, which is about as many pixels as it is wide."""
SAMPLES = 20
"""How many samples of a run the page has at most: the first ones, and others evenly up to the last."""
_SCORED = "data.valid_source", "data.split", "data.level", "data.unit"
"""The options that decide which characters of a text are scored."""
_INTERVALS = ("train.log_every", "train.eval_every", "train.save_every", "train.sample_every")
"""Options that follow from the speed of the machine and change nothing that is learned: no difference of runs."""
_EARLY_SAMPLES = 8
"""How many of them are the first ones, which see noise become words."""
SAMPLE_LENGTH = 2000
"""Characters of a sample on the page."""
# A finished run ends where it should.
_ENDS = {
    "in use": "still training when this page was written",
    "resumable": "stopped; it can be resumed",
    "damaged": "the last row; no checkpoint can be read",
    "no checkpoint": "the last row; there is no checkpoint",
}


def report_page(records: Sequence[RunRecord]) -> str:
    """A page of HTML about runs: curves, settings, samples, scores."""
    names = [one_line(name) for name in short_names([record.path for record in records])]
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    return html_page("report", f"{title} · charlm report", report_data(records, names))


def report_data(records: Sequence[RunRecord], names: Sequence[str]) -> dict[str, Any]:
    """What the page shows of runs, by these names."""
    return {
        "version": __version__,
        "runs": [
            _run(name, record) | {"text": text, "ranked": number}
            for name, record, text, number in zip(names, records, *_texts(records), strict=True)
        ],
        "settings": _settings(records),
    }


def _texts(records: Sequence[RunRecord]) -> tuple[list[str | None], list[int | None]]:
    """The name of each run's text, and a number that runs share whose scores can be ranked; None for what is unknown.

    They are of the same characters: the same text, divided in the same way.
    """
    sources = [record.options.get("data.source") for record in records]
    known = list(dict.fromkeys(source for source in sources if source))
    short = dict(zip(known, short_names([Path(source) for source in known]), strict=True))
    keys = [
        to_json([record.about.corpus_sha256 or source, *(record.options.get(key) for key in _SCORED)])
        if source
        else None
        for source, record in zip(sources, records, strict=True)
    ]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(filter(None, keys)))}
    return [one_line(short[source]) if source else None for source in sources], [
        None if key is None else numbers[key] for key in keys
    ]


def _run(name: str, record: RunRecord) -> dict[str, Any]:
    about, samples = record.about, record.samples
    if len(samples) > SAMPLES:
        later = np.linspace(_EARLY_SAMPLES, len(samples) - 1, SAMPLES - _EARLY_SAMPLES).round().astype(int)
        samples = [samples[index] for index in (*range(_EARLY_SAMPLES), *later)]
    return {
        "name": name,
        "model": f"{about.kind}, {about.layers} × {about.hidden} units{about.several}" if about.kind else None,
        "scores": _scores(record),
        "faults": [one_line(fault) for fault in record.faults],
        "curves": {split: _curves(columns, VALUES[split]) for split, columns in record.splits.items()},
        "events": _events(record),
        "samples": [sample_data(row) for row in samples],
    }


def _scores(record: RunRecord) -> dict[str, Any]:
    """The final scores, None for what is unknown."""
    train, valid = record.splits["train"], record.splits["valid"]
    known = np.flatnonzero(np.isfinite(valid["nats"]))
    best = known[np.argmin(valid["nats"][known])] if len(known) else None
    speeds = train["chars_per_s"][np.isfinite(train["chars_per_s"])]
    ends = {name: max(map(float, [*train[name], *valid[name]]), default=None) for name in PLACES}
    last, train_last = (
        float(column[-1]) if len(column) and np.isfinite(column[-1]) else None
        for column in (valid["nats"], train["nats"])
    )
    return {
        "state": record.about.state,
        "parameters": record.about.parameters,
        "step": record.about.step if record.about.step is not None else ends["step"],
        "chars": ends["chars"],
        "elapsed_s": ends["elapsed_s"],
        "best_nats": None if best is None else float(valid["nats"][best]),
        "best_step": None if best is None else int(valid["step"][best]),
        "last_nats": last,
        "train_nats": train_last,
        "chars_per_s": float(np.median(speeds)) if len(speeds) else None,
    }


def _curves(columns: dict[str, Floats], names: Sequence[str]) -> dict[str, Any]:
    """Points of the curves over steps, characters and seconds; with the range of values where points were merged."""
    rows = len(columns["step"])
    if not rows:
        return {"rows": 0}
    starts = stretches(rows)
    lasts = np.append(starts[1:], rows) - 1
    curves: dict[str, Any] = {"rows": rows, "at": {name: packed(columns[name][lasts]) for name in PLACES}}
    for name in names:
        mean, low, high = (values.astype(np.float32) for values in summary_of(columns[name], starts))
        curves[name] = {"mean": packed(mean)}
        if len(starts) < rows:
            curves[name] |= {"low": packed(low), "high": packed(high)}
    return curves


def stretches(rows: int) -> npt.NDArray[np.int64]:
    """Where each stretch of rows starts that becomes one point: at most MOST, and fewer rows each at the beginning.

    Two thirds of the points lie evenly. The others lie evenly on a logarithmic axis, where the beginning is wide.
    """
    if rows <= MOST:
        return np.arange(rows)
    even = np.linspace(0, rows, 2 * MOST // 3, endpoint=False).astype(np.int64)
    early = np.geomspace(1, rows, MOST // 3, endpoint=False).astype(np.int64)
    return np.unique(np.concatenate([even, early]))


def summary_of(column: Floats, starts: npt.NDArray[np.int64]) -> tuple[Floats, Floats, Floats]:
    """Mean, least and greatest finite value of each stretch; nan for a stretch without one."""
    finite = np.isfinite(column)
    counts = np.add.reduceat(finite.astype(np.float64), starts)
    with np.errstate(invalid="ignore"):
        mean = np.add.reduceat(np.where(finite, column, 0.0), starts) / counts
    known = np.where(finite, column, np.nan)
    return mean, np.fmin.reduceat(known, starts), np.fmax.reduceat(known, starts)


def _events(record: RunRecord) -> list[dict[str, Any]]:
    """Rollbacks and the end, with the place of each on every axis."""
    if record.is_empty:
        return []
    axes = {name: np.concatenate([[0.0], *(columns[name] for columns in record.splits.values())]) for name in PLACES}
    order = np.argsort(axes["step"], kind="stable")
    events = [(step, "rollback", text) for step, text in record.events]
    if record.about.state in _ENDS:
        events.append((int(axes["step"].max()), "end", _ENDS[record.about.state]))
    return [
        {
            "kind": kind,
            "text": one_line(text),
            "at": {name: float(np.interp(step, axes["step"][order], axes[name][order])) for name in PLACES},
        }
        for step, kind, text in events
    ]


def sample_data(row: dict[str, Any]) -> dict[str, Any]:
    """A text with its bits, as in `RunRecord.samples`: bits in tenths; 255 for bits that are unknown."""
    text, bits = row["text"], row["bits"]
    sample = {"step": row["step"], "text": text[:SAMPLE_LENGTH], "left_out": max(len(text) - SAMPLE_LENGTH, 0)}
    if bits is None:
        return sample | {"bits": None}
    tenths = np.clip(np.array(bits[:SAMPLE_LENGTH], np.float64) * 10, 0, 254).round()
    return sample | {"bits": packed(np.where(np.isnan(tenths), 255, tenths).astype(np.uint8))}


def _settings(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Every option, its value in each run as YAML (None if the run lacks it), and whether it tells the runs apart."""
    settings = []
    for key in dict.fromkeys(key for record in records for key in record.options):
        values = [dump_flow(each.options[key]) if key in each.options else None for each in records]
        known = {value for value, record in zip(values, records, strict=True) if record.options}
        settings.append({"key": key, "values": values, "differs": len(known) > 1 and key not in _INTERVALS})
    return settings
