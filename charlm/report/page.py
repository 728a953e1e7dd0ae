"""The page of runs: everything that charlm/web/report/ shows, thinned and packed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from charlm.config.yaml import dump_flow
from charlm.report.run import PLACES, VALUES, ReportedRun, short_names
from charlm.runs import INTERVALS
from charlm.scored import apart, text_names
from charlm.system.arrays import Floats, Floats32, Ints
from charlm.system.formatting import one_line, source_name
from charlm.version import __version__
from charlm.web.page import html_page, packed

MOST = 1200
"""Points of a curve on the page, which is about as many pixels as it is wide."""
SAMPLES = 20
"""How many samples of a run the page has at most: most of them early, where noise becomes words."""
COLORS, DASHES = 8, 4
"""How many colors and kinds of dashes charlm/web/report/page.css has for runs."""
SAMPLE_LENGTH = 1000
"""Characters of a sample on the page."""


def report_page(runs: Sequence[ReportedRun], comparison: dict[str, Any] | None = None, folder: Path = Path()) -> str:
    """A page of HTML about runs: curves, settings, samples, scores.

    comparison: data of a comparison, see `comparison_data`. Its runs, which are in `folder`, come first, in its order
    and with its names.
    """
    root = folder.resolve()
    compared = {} if comparison is None else {root / name: kind for name, kind in comparison["runs"].items()}
    at = {run.about.path.resolve(): run for run in runs}
    if not compared.keys() <= at.keys():
        comparison, compared = None, {}
    order = [*compared, *(place for place in at if place not in compared)]
    runs = [at[place] for place in order]
    short = short_names([run.about.path for run in runs])
    seed = "-1" if len(order) > len(compared) else ""  # beside the runs of other seeds
    names = []
    for place, name in zip(order, short, strict=True):
        names.append(one_line(f"{compared[place]}{seed}" if place in compared else name))
    title = names[0] if len(names) == 1 else f"{len(names)} runs"
    shown = [_shown(name, run) for name, run in zip(names, runs, strict=True)]
    texts = [run.about.scored for run in runs]
    for each, text, name in zip(shown, texts, text_names(texts), strict=True):
        each["scoredOn"] = None if name is None else one_line(name)
        each["isUnseen"] = text is not None and text.seen == 0
    for each, (color, dash) in zip(shown, _looks(order, [*compared]), strict=True):
        each |= {"color": color, "dash": dash}
    data = {"version": __version__, "runs": shown, "apart": one_line(apart(texts))}
    data |= {"settings": settings_data(runs), "comparison": comparison}
    return html_page("report", f"{title} · charlm report", data)


def _looks(places: Sequence[Path], kinds: Sequence[Path]) -> list[tuple[int, int]]:
    """A color and dashes for each run; the seeds of a compared kind, whose first runs are `kinds`, share a color."""
    of_kinds = [_run_of_kind(place)[0] for place in kinds]
    numbers: list[tuple[int, int]] = []
    others = len(kinds)
    for place in places:
        kind, seed = _run_of_kind(place)
        if kind in of_kinds:
            numbers.append((of_kinds.index(kind), seed - 1))
        else:
            numbers.append((others, 0))
            others += 1
    return [(number % COLORS, (number // COLORS + seed) % DASHES) for number, seed in numbers]


def _run_of_kind(place: Path) -> tuple[Path, int]:
    """The folder of a compared run without its seed, which its name ends with, and the seed; 1 if there is none."""
    kind, _, seed = place.name.rpartition("-")
    return (place.with_name(kind), int(seed)) if kind and seed.isdecimal() else (place, 1)


def _shown(name: str, run: ReportedRun) -> dict[str, Any]:
    about, samples, source = run.about, run.samples, run.options.get("data.source")
    if len(samples) > SAMPLES:
        numbers = np.geomspace(1, len(samples), SAMPLES).round().astype(int)
        samples = [samples[number - 1] for number in np.unique(numbers)]
    return {
        "name": name,
        "curves": {split: _curves(columns, VALUES[split]) for split, columns in run.splits.items()},
        "rollbacks": _rollbacks(run),
        "model": about.model,
        "text": source_name(source) if source else None,
        "scores": _scores(run),
        "faults": [one_line(fault) for fault in run.faults],
        "samples": [{"step": sample["step"]} | text_data(sample["text"], sample["bits"]) for sample in samples],
    }


def _scores(run: ReportedRun) -> dict[str, Any]:
    """The final scores; None, or a number that is not finite, for what is unknown."""
    train, valid = run.splits["train"], run.splits["valid"]
    speeds = train["chars_per_s"][np.isfinite(train["chars_per_s"])]
    ends = {name: max([*train[name], *valid[name]], default=None) for name in PLACES}
    return ends | {
        "state": run.about.state,
        "parameters": run.about.parameters,
        "best_nats": run.about.best_nats,
        "last_nats": next(reversed(valid["nats"].tolist()), None),
        "train_nats": next(reversed(train["nats"].tolist()), None),
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
        mean, low, high = map(packed, summary_of(columns[name], starts))
        curves[name] = {"mean": mean} if len(starts) == rows else {"mean": mean, "low": low, "high": high}
    return curves


def stretches(rows: int) -> Ints:
    """Where each stretch of rows starts that becomes one point of a curve: at most MOST, the shortest ones first.

    Two thirds of the points are spaced evenly, the others on a logarithmic axis, which widens the beginning.
    """
    if rows <= MOST:
        return np.arange(rows)
    even = np.linspace(0, rows, 2 * MOST // 3, endpoint=False).astype(np.int64)
    early = np.geomspace(1, rows, MOST // 3, endpoint=False).astype(np.int64)
    return np.unique(np.concatenate([even, early]))


def summary_of(column: Floats, starts: Ints) -> list[Floats32]:
    """Mean, least and greatest finite value of each stretch; nan for a stretch without one."""
    finite = np.isfinite(column)
    counts = np.add.reduceat(finite.astype(np.float64), starts)
    known = np.where(finite, column, np.nan)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = np.add.reduceat(np.where(finite, column, 0.0), starts) / counts
        extremes = np.fmin.reduceat(known, starts), np.fmax.reduceat(known, starts)
        return [values.astype(np.float32) for values in (mean, *extremes)]


def _rollbacks(run: ReportedRun) -> list[dict[str, Any]]:
    """Each rollback, at its step and where the next row of training stands on the other axes."""
    train, rollbacks = run.splits["train"], []
    for step, text in run.rollbacks:
        row = train["step"].searchsorted(step)
        if row < len(train["step"]):
            at = {name: float(train[name][row]) for name in PLACES} | {"step": step}
            rollbacks.append({"text": one_line(text), "at": at})
    return rollbacks


def text_data(text: str, bits: Sequence[float] | Floats) -> dict[str, Any]:
    """A text with its bits, in tenths; 255 for bits that are unknown."""
    tenths = np.clip(np.array(bits[:SAMPLE_LENGTH], np.float64) * 10, 0, 254).round()
    known = np.where(np.isnan(tenths), 255, tenths).astype(np.uint8)
    return {"text": text[:SAMPLE_LENGTH], "left_out": max(len(text) - SAMPLE_LENGTH, 0), "bits": packed(known)}


def settings_data(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """Every option, by section: its value in each run as YAML (None for none), and whether it tells the runs apart."""
    keys = dict.fromkeys(key for run in runs for key in run.options)
    sections = [*dict.fromkeys(key.rpartition(".")[0] for key in keys)]
    settings = []
    for key in sorted(keys, key=lambda key: sections.index(key.rpartition(".")[0])):
        values = [dump_flow(each.options[key]) if key in each.options else None for each in runs]
        known = {value for value, run in zip(values, runs, strict=True) if run.options}
        settings.append({"key": key, "values": values, "differs": len(known) > 1 and key not in INTERVALS})
    return settings
