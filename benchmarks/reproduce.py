"""Trains what docs/results.md shows, and rewrites its tables, its plot and the README's short table.

Run by scripts/reproduce. Each run has its own folder under runs/reproduce/: a complete one is not trained again, an
interrupted one is resumed. The row `cells` is a comparison of all kinds by `charlm compare`. benchmarks/results.json
and benchmarks/cells.json record what each run reached and on which machine; tables and plot are made from them. A row
without a complete run in runs/reproduce/ keeps its record.
"""

import argparse
import json
import math
import random
import re
import statistics
import subprocess
import sys
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from charlm.cells import CELLS

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "runs/reproduce"
RESULTS, COMPARISON = ROOT / "benchmarks/results.json", ROOT / "benchmarks/cells.json"
PAGE = ROOT / "docs/results.md"
README = ROOT / "README.md"
PLOT = ROOT / "docs/results.png"


PLAYS, CODE, NAMES = "tinyshakespeare", "python-stdlib", "unicode-names"
SPLITS = {PLAYS: "[0.9, 0.1, 0]", CODE: "[0.98, 0.02, 0]", NAMES: "[0.9, 0.1, 0]"}
"""Text → shares for training, validation and test."""
MINUTES = {"10 s": 1 / 6, "1 min": 1, "5 min": 5, "30 min": 30}
COMPARED, COMPARED_MINUTES = "cells", 2
"""Name of the row that compares the kinds of cells on tinyshakespeare, and the minutes of each."""


@dataclass(frozen=True)
class Row:
    """A row of the table; charlm chooses all settings."""

    name: str
    text: str
    time: str


ROWS = [
    Row(f"{text}-{time.replace(' ', '')}", text, time)
    for text in SPLITS
    for time in MINUTES
    if text == PLAYS or time != "30 min"
]

PUBLISHED = {"nanoGPT, A100: 1.47": (180, 1.4697), "nanoGPT, 4 CPU cores: 1.88": (74, 1.88)}
"""Seconds and validation nats on tinyshakespeare from nanoGPT's README, on random windows without carried state. We
timed its CPU config."""


@dataclass(frozen=True)
class Run:
    """What one training reached, and on which machine."""

    seed: int
    cpu: str
    cores: int
    precision: str
    model: dict[str, Any]
    """The section `model` of its config."""
    parameters: int
    chars_per_s: float
    nats: float
    dynamic_nats: float | None
    curve: list[list[float]]
    """Seconds and nats of every evaluation during training."""


Results = dict[str, list[Run]]
"""Name of a row → its runs, by seed."""


def main() -> None:
    """Train and score what is missing, record what is complete, write tables and plot."""
    arguments = parse()
    for row in ROWS:
        if not arguments.rows or row.name in arguments.rows:
            for seed in range(1, arguments.seeds + 1):
                train(row, seed, arguments.source)
    if arguments.seeds and (not arguments.rows or COMPARED in arguments.rows):
        compare(arguments.source)
    results, compared = record(), json.loads(COMPARISON.read_text(encoding="utf-8"))
    write_between(PAGE, "results", table(results))
    write_between(PAGE, "cells", table_of_cells(compared))
    write_between(README, "results", summary(results))
    draw(results)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/reproduce", description=(__doc__ or "").splitlines()[0])
    names = [*(row.name for row in ROWS), COMPARED]
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {', '.join(names)}")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="of each row; 0: train nothing; default: 1")
    parser.add_argument("--source", type=Path, metavar="FILE", help="tinyshakespeare's text, if not in data/")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.rows if name not in names]:
        parser.error(f"row {unknown[0]!r}: unknown; allowed: {' | '.join(names)}")
    if arguments.seeds < 0:
        parser.error(f"--seeds: found {arguments.seeds}; allowed: integers ≥ 0")
    return arguments


def charlm(*words: object) -> list[str]:
    return [sys.executable, "-m", "charlm", *map(str, words)]


def train(row: Row, seed: int, source: Path | None) -> None:
    """Train and score one seed unless that is done."""
    run = RUNS / f"{row.name}-seed{seed}"
    if (run / "result.json").is_file():
        return
    words = ["--resume"]
    if not (run / "checkpoints/last.safetensors").is_file():
        settings = [f"--set=data.split={SPLITS[row.text]}", f"--set=seed={seed}", "--device=cpu"]
        words = [text(row, source), f"--minutes={MINUTES[row.time]:.4g}", *settings]
    print(f"=== {row.name}, seed {seed}", file=sys.stderr, flush=True)
    subprocess.run(charlm("train", *words, "--run-dir", run), cwd=ROOT, check=True)
    dynamic = row.text == PLAYS and MINUTES[row.time] >= 5
    command = charlm("eval", run, "--json", *(["--dynamic"] if dynamic else []))
    scored = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    result = read_run(run, seed, json.loads(scored.stdout))
    (run / "result.json").write_text(json.dumps(asdict(result)), encoding="utf-8")


def compare(source: Path | None) -> None:
    """Compare all kinds of cells, and record the rows and the machine."""
    from bench_measure import cpu

    settings = [f"--set=data.split={SPLITS[PLAYS]}", "--set=device=cpu"]
    words = [plays(source), f"--minutes={COMPARED_MINUTES}", f"--cells={','.join(CELLS)}", *settings]
    command = charlm("compare", *words, "--out", RUNS / COMPARED, "--json")
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found = {**cpu(), "rows": json.loads(done.stdout)["rows"]}
    COMPARISON.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def text(row: Row, source: Path | None) -> str:
    """What `charlm train` is given as the text of a row."""
    if row.text == PLAYS:
        return plays(source)
    if row.text == CODE:
        return "builtin:python-stdlib"
    RUNS.mkdir(parents=True, exist_ok=True)
    file = RUNS / "unicode-names.txt"
    file.write_text(unicode_names(), encoding="utf-8")
    return str(file)


def unicode_names() -> str:
    """The names of Unicode's characters without ideographs and syllables, one a line, in random order."""
    named = [unicodedata.name(chr(point), "") for point in range(0x30000)]
    names = [name for name in named if name and not name.startswith(("CJK", "HANGUL SYLLABLE"))]
    random.Random(1).shuffle(names)
    return "\n".join(names) + "\n"


def plays(source: Path | None) -> str:
    return str(source.resolve()) if source else "data/tinyshakespeare.txt"


def read_run(run: Path, seed: int, score: dict[str, Any]) -> Run:
    """The record of a run that was trained on this machine."""
    from bench_measure import cpu

    from charlm.runs import read_header

    here = cpu()
    config, _, parameters = read_header(run / "checkpoints/best.safetensors")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return Run(
        seed=seed,
        cpu=re.sub(r"[(](R|TM)[)]| Processor", "", here["cpu"]),
        cores=here["cores"],
        precision=config["precision"],
        model=config["model"],
        parameters=parameters,
        chars_per_s=statistics.median(row["chars_per_s"] for row in rows if row["split"] == "train"),
        nats=score["nats_per_char"],
        dynamic_nats=score.get("dynamic", {}).get("nats_per_char"),
        curve=[[row["elapsed_s"], row["nats"]] for row in rows if row["split"] == "valid"],
    )


def record() -> Results:
    """Record the complete runs of every row; the rows without one keep their earlier record."""
    results = read_results()
    for row in ROWS:
        files = RUNS.glob(f"{row.name}-seed*/result.json")
        runs = [Run(**json.loads(file.read_text(encoding="utf-8"))) for file in files]
        if runs:
            results[row.name] = sorted(runs, key=lambda run: run.seed)
    results = {row.name: results[row.name] for row in ROWS if row.name in results}
    # A line for each row, so that a diff shows which ones changed.
    lines = (f"{json.dumps(name)}: {json.dumps([asdict(run) for run in runs])}" for name, runs in results.items())
    RESULTS.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    return results


def read_results() -> Results:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {name: [Run(**run) for run in runs] for name, runs in results.items()}


def table(results: Results) -> str:
    columns = ["text", "time", "model (layers × units)", "parameters", "machine", "characters/s", "nats", "dynamic"]
    heading = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    return heading + "".join(line(row, results[row.name]) for row in ROWS if row.name in results)


def line(row: Row, runs: list[Run]) -> str:
    """A row of the table: means over the seeds, and the range of their scores."""
    nats = [run.nats for run in runs]
    seeds = "" if len(runs) == 1 else f" ({len(runs)} seeds: {min(nats):.4f} to {max(nats):.4f})"
    dynamic = [run.dynamic_nats for run in runs if run.dynamic_nats is not None]
    cells = [
        row.text,
        row.time,
        each(model(run) for run in runs),
        each(f"{run.parameters:,}" for run in runs),
        each(f"{run.cores} × {run.cpu}, {run.precision}" for run in runs),
        f"{statistics.median(run.chars_per_s for run in runs):,.0f}",
        f"{statistics.mean(nats):.4f}{seeds}",
        f"{statistics.mean(dynamic):.4f}" if dynamic else "–",
    ]
    return f"| {' | '.join(cells)} |\n"


def table_of_cells(compared: dict[str, Any]) -> str:
    """The comparison's table, the best kind first."""
    columns = ["cell (layers × units)", "parameters", "characters/s", "nats", "after equal characters"]
    heading = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n"
    lines = [
        f"| {row['cell']}, {row['layers']} × {row['hidden']} | {row['parameters']:,} | {row['chars_per_s']:,.0f} "
        f"| {row['nats']:.4f} | {row['nats_after_chars']:.4f} |\n"
        for row in sorted(compared["rows"], key=lambda row: row["nats"])
    ]
    return heading + "".join(lines)


def each(values: Iterable[str]) -> str:
    """The different values: seeds may get different models and machines."""
    return " or ".join(dict.fromkeys(values))


def model(run: Run) -> str:
    cell, members = run.model["cell"], run.model["members"]
    member = f"{cell['kind']}, {run.model['layers']} × {cell['hidden']}"
    return member if members == 1 else f"{member}, {members} members"


def summary(results: Results) -> str:
    """The README's table: scores as a newcomer reads them."""
    lines = ["| training time | chosen model (layers × units) | nats per character | bits |\n|---|---|---|---|\n"]
    for row in plays_rows(results):
        runs = results[row.name]
        nats = statistics.mean(run.nats for run in runs)
        lines.append(f"| {row.time} | {each(map(model, runs))} | {nats:.2f} | {nats / math.log(2):.2f} |\n")
    return "".join(lines)


def plays_rows(results: Results) -> list[Row]:
    """The rows of tinyshakespeare."""
    return [row for row in ROWS if row.text == PLAYS and row.name in results]


def write_between(page: Path, mark: str, table: str) -> None:
    """Put a table between a page's two comments of this name, and print it; exit if they are missing."""
    parts = re.split(f"(<!-- /?{mark} -->\n)", page.read_text(encoding="utf-8"))
    if len(parts) != 5:
        sys.exit(f"{page}: found {len(parts) // 2} lines <!-- {mark} --> and <!-- /{mark} -->; allowed: one of each")
    before, begin, _, end, after = parts
    page.write_text(before + begin + table + end + after, encoding="utf-8")
    print(table)


def draw(results: Results) -> None:
    """Validation score over training time: a line for each row, and nanoGPT's stars."""
    lines = [results[row.name] for row in plays_rows(results)]
    if not lines:
        return
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5))
    style: dict[str, Any] = {"textcoords": "offset points", "bbox": {"color": "white", "alpha": 0.8, "pad": 1}}
    ends = []
    for runs in lines:
        seconds, nats = runs[0].curve[-1][0], statistics.mean(run.nats for run in runs)
        ends.append(nats)
        axes.plot(*zip(*runs[0].curve, strict=True), color="tab:blue", alpha=0.5)
        axes.plot(seconds, nats, "o", color="tab:blue")
        label = f"{model(runs[0])}: {nats:.2f}"
        offset, align = ((0, -17), "center") if runs is lines[0] else ((-8, -15), "right")
        axes.annotate(label, (seconds, nats), offset, ha=align, color="tab:blue", weight="bold", **style)
    for name, (seconds, nats) in PUBLISHED.items():
        axes.plot(seconds, nats, "k*", markersize=9)
        axes.annotate(name, (seconds, nats), (-9, 20), ha="right", **style)
    axes.set_title("Tinyshakespeare: four times, four models that charlm chose", loc="left")
    axes.set(xscale="log", xlabel="training time", ylabel="validation, nats per character (lower is better)")
    axes.set(xlim=(5, 4000), ylim=(min(ends) - 0.06, max(*ends, 1.9) + 0.05))
    axes.set_xticks([60 * minutes for minutes in MINUTES.values()], list(MINUTES))
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PLOT, dpi=110, bbox_inches="tight")
    print(f"plot: {PLOT}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    except KeyboardInterrupt:
        sys.exit(130)
