"""The page of runs: everything that charlm/web/report/ shows, thinned and packed."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from charlm import __version__
from charlm.config.yaml import dump_flow
from charlm.report.run import PLACES, VALUES, Floats, RunRecord, short_names
from charlm.report.thin import last_of, stretches, summary_of
from charlm.system.formatting import one_line
from charlm.web.page import html_page, packed

SAMPLES = 20
"""How many samples of a run the page has: the first, the last, and others evenly between them."""
SAMPLE_LENGTH = 2000
"""Characters of a sample on the page."""


def report_page(records: Sequence[RunRecord]) -> str:
    """A page of HTML about runs: curves, settings, samples, scores."""
    names = [one_line(name) for name in short_names([record.path for record in records])]
    data = {
        "version": __version__,
        "runs": [_run(name, record) for name, record in zip(names, records, strict=True)],
        "settings": _settings(records),
    }
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    return html_page("report", f"{title} · charlm report", data)


def _run(name: str, record: RunRecord) -> dict[str, Any]:
    about = record.about
    return {
        "name": name,
        "model": f"{about.kind}, {about.layers} × {about.hidden} units" if about.kind else None,
        "scores": _scores(record),
        "faults": [one_line(fault) for fault in record.faults],
        "curves": {split: _curves(columns, VALUES[split]) for split, columns in record.splits.items()},
        "events": _events(record),
        "samples": [_sample(row) for row in _some(record.samples)],
    }


def _scores(record: RunRecord) -> dict[str, Any]:
    """The final scores, None for what is unknown."""
    train, valid = record.splits["train"], record.splits["valid"]
    known = np.flatnonzero(np.isfinite(valid["nats"]))
    best = None if not len(known) else known[np.argmin(valid["nats"][known])]
    speeds = train["chars_per_s"][np.isfinite(train["chars_per_s"])]
    ends = {name: max(map(float, [*train[name], *valid[name]]), default=None) for name in PLACES}
    return {
        "state": record.about.state,
        "parameters": record.about.parameters,
        "step": record.about.step if record.about.step is not None else ends["step"],
        "chars": ends["chars"],
        "elapsed_s": ends["elapsed_s"],
        "best_nats": None if best is None else float(valid["nats"][best]),
        "best_step": None if best is None else int(valid["step"][best]),
        "last_nats": _last(valid["nats"]),
        "train_nats": _last(train["nats"]),
        "chars_per_s": float(np.median(speeds)) if len(speeds) else None,
    }


def _last(column: Floats) -> float | None:
    """The last value; None if there is none, or it is not finite."""
    return float(column[-1]) if len(column) and math.isfinite(column[-1]) else None


def _curves(columns: dict[str, Floats], names: Sequence[str]) -> dict[str, Any]:
    """Points of the curves over steps, characters and seconds; with the range of values where points were merged."""
    rows = len(columns["step"])
    if not rows:
        return {"rows": 0}
    starts = stretches(rows)
    curves: dict[str, Any] = {"rows": rows, "at": {name: packed(last_of(columns[name], starts)) for name in PLACES}}
    for name in names:
        mean, low, high = (values.astype(np.float32) for values in summary_of(columns[name], starts))
        curves[name] = {"mean": packed(mean)}
        if len(starts) < rows:
            curves[name] |= {"low": packed(low), "high": packed(high)}
    return curves


# A finished run ends where it should.
_ENDS = {
    "in use": "still training when this page was written",
    "resumable": "stopped; it can be resumed",
    "damaged": "the last row; no checkpoint can be read",
    "no checkpoint": "the last row; there is no checkpoint",
}


def _events(record: RunRecord) -> list[dict[str, Any]]:
    """Rollbacks and the end, with the place of each on every axis."""
    if record.is_empty:
        return []
    places = {name: np.concatenate([[0.0], *(columns[name] for columns in record.splits.values())]) for name in PLACES}
    order = np.argsort(places["step"], kind="stable")
    end = int(places["step"].max())
    events = [(event.step, "rollback", event.text) for event in record.events]
    events += [(end, "end", _ENDS[record.about.state])] if record.about.state in _ENDS else []
    return [
        {
            "kind": kind,
            "text": one_line(text),
            "at": {name: float(np.interp(step, places["step"][order], places[name][order])) for name in PLACES},
        }
        for step, kind, text in events
    ]


def _some(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(rows) <= SAMPLES:
        return rows
    return [rows[place] for place in np.linspace(0, len(rows) - 1, SAMPLES).round().astype(int)]


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    """Bits in tenths; 255 for bits that are unknown."""
    text, bits = row["text"], row["bits"]
    sample = {"step": row["step"], "text": text[:SAMPLE_LENGTH], "left_out": max(len(text) - SAMPLE_LENGTH, 0)}
    if bits is None:
        return sample | {"bits": None}
    tenths = np.clip(np.array(bits[:SAMPLE_LENGTH], np.float64) * 10, 0, 254).round()
    return sample | {"bits": packed(np.where(np.isnan(tenths), 255, tenths).astype(np.uint8))}


def _settings(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Every option, its value in each run as YAML (None if the run lacks it), and whether runs differ in it."""
    settings = []
    for key in dict.fromkeys(key for record in records for key in record.options):
        values = [dump_flow(each.options[key]) if key in each.options else None for each in records]
        known = {value for value, record in zip(values, records, strict=True) if record.options}
        settings.append({"key": key, "values": values, "differs": len(known) > 1})
    return settings
